"""Search, re-ranking, refinement and whitening on a pretend GPU: the results of the CPU, and few waits."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.pretend_device import module_on_device, on_device, pretend_device
from vicinal import retrieval
from vicinal.models import ContextRefiner

NUM_VECTORS = 24
ROWS = np.arange(NUM_VECTORS)


def vectors() -> Tensor:
    return torch.randn(NUM_VECTORS, 8, generator=torch.Generator().manual_seed(0))


def search(x: Tensor, _: Callable[[nn.Module], nn.Module]) -> list[np.ndarray]:
    found = retrieval.top_k(x, x, 5, exclude_self=ROWS, query_groups=ROWS // 2, gallery_groups=ROWS // 2)
    return [found.scores, found.ids]


def rerank(method: retrieval.Reranking) -> Callable[..., list[np.ndarray]]:
    def run(x: Tensor, _: Callable[[nn.Module], nn.Module]) -> list[np.ndarray]:
        found = retrieval.rerank(x, x, 5, method, exclude_self=ROWS)
        return [found.scores, found.ids]

    return run


def refine(x: Tensor, moved: Callable[[nn.Module], nn.Module]) -> list[np.ndarray]:
    torch.manual_seed(0)
    refiner = ContextRefiner(8, depth=2, num_heads=2, neighbors=3, residual_gate=False)
    return [retrieval.refine(moved(refiner), x)]


def whiten(x: Tensor, _: Callable[[nn.Module], nn.Module]) -> list[np.ndarray]:
    return [retrieval.PCAWhitening.fit(x).apply(x)]


USES: dict[str, tuple[Callable[..., list[np.ndarray]], int, int]] = {
    "search": (search, 10, 75),
    "contextual re-ranking": (rerank(retrieval.ContextualReranking(k=4)), 8, 45),
    "reciprocal re-ranking": (rerank(retrieval.ReciprocalReranking(k1=6, k2=2)), 10, 105),
    "query expansion": (rerank(retrieval.QueryExpansion(n=3)), 18, 110),
    "database augmentation": (rerank(retrieval.DatabaseAugmentation(n=3)), 18, 110),
    "neighbor average": (rerank(retrieval.NeighborAverage(n=3)), 19, 120),
    "refinement": (refine, 8, 120),
    "whitening": (whiten, 3, 3),
}
"""Use -> its function, and the host's waits and the launches, which may become fewer, not more."""


@pytest.mark.parametrize("name", USES)
def test_results_are_those_of_the_cpu_with_few_waits_and_launches(name: str) -> None:
    use, waits, launches = USES[name]
    expected = use(vectors(), lambda module: module)
    with pretend_device() as device:
        found = use(on_device(vectors()), module_on_device)
    for each, by_cpu in zip(found, expected, strict=True):
        np.testing.assert_allclose(each, by_cpu, rtol=5e-7, atol=5e-7)
    assert device.waits.total() <= waits, device.waits
    assert device.launches <= launches
