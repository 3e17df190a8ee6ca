"""The contextual loss tile by tile: value and gradient of the formulas, whatever the tiles, and little memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.losses.allocations import largest_allocation, peak_and_kept
from tests.losses.test_contextual import (
    EPSILONS,
    SAMPLES,
    Sample,
    assert_near,
    by_hand,
    clearness,
    clusters,
    ours,
    value_and_gradient,
)
from vicinal.losses import ContextualLoss, ContrastiveLoss
from vicinal.losses.contextual import loss as contextual_loss
from vicinal.losses.contextual import packed_matrices, tiled
from vicinal.losses.contextual.packed_matrices import BitMatrix, SymmetricMatrix, count_type
from vicinal.losses.contextual.tiled import tiled_loss


@pytest.fixture
def tiled_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the batches that are computed by tiles, which now are all that may be."""
    calls = []

    def counted(vectors: Tensor, *arguments: Any) -> Tensor:
        calls.append(len(vectors))
        return tiled_loss(vectors, *arguments)

    monkeypatch.setattr(contextual_loss, "tiled_loss", counted)
    monkeypatch.setattr(contextual_loss, "MIN_SPARSE_SAMPLES", 10**9)
    monkeypatch.setattr(contextual_loss, "MIN_TILED_SAMPLES", 1)
    return calls


@pytest.mark.parametrize("tile", [8, 256])
def test_value_and_gradient(tile: int, tiled_calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_matrices, "TILE", tile)
    for name, sample in SAMPLES.items():
        for epsilon in EPSILONS:
            got = ours(sample, epsilon=epsilon)
            assert_near(got, by_hand(sample, epsilon=epsilon), message=f"{name}, epsilon {epsilon}")
    assert len(tiled_calls) == len(SAMPLES) * len(EPSILONS)


@pytest.mark.parametrize("near", [0.0, 0.16, 0.4, 3.0])
def test_neighborhoods_of_any_size(near: float, tiled_calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """From the whole batch to a few samples."""
    monkeypatch.setattr(packed_matrices, "TILE", 64)
    noise = torch.randn(203, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sample = Sample(1 + near * noise, torch.arange(203) % 50, 4)
    assert_near(ours(sample), by_hand(sample), 1e-8)
    assert tiled_calls == [203]


def test_float32(tiled_calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_matrices, "TILE", 64)
    sample = clusters(60, 5, 16, 0.8)
    assert clearness(sample.x, 5, 0.05) > 1e-6
    got = ours(sample._replace(x=sample.x.float()))
    assert got[0].dtype == got[1].dtype == torch.float32
    assert_near(got, by_hand(sample), 1e-5)
    assert tiled_calls == [300]


def test_float32_of_similar_embeddings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient does not lose the digits in which embeddings of an untrained model differ."""
    monkeypatch.setattr(packed_matrices, "TILE", 64)
    x = 1 + 0.01 * torch.randn(203, 32, generator=torch.Generator().manual_seed(0))
    labels, variant = torch.arange(203) // 4, ContextualLoss(4).variant
    single, double = (
        value_and_gradient(lambda x: tiled_loss(F.normalize(x), labels, 4, variant), x.to(dtype))
        for dtype in (torch.float32, torch.float64)
    )
    assert_near((single[0].double(), single[1].double()), double, 5e-4)


def test_counts_that_need_more_than_two_bytes() -> None:
    assert torch.tensor(32767, dtype=count_type(32767)) == 32767
    assert torch.tensor(32768, dtype=count_type(32768)) == 32768


def test_which_batches_are_tiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large ones with large neighborhoods; value and gradient do not tell."""
    sizes = []

    def counted(vectors: Tensor, *arguments: Any) -> Tensor:
        sizes.append(len(vectors))
        return tiled_loss(vectors, *arguments)

    monkeypatch.setattr(contextual_loss, "tiled_loss", counted)
    untrained = Sample(1 + 0.2 * torch.randn(1024, 8, dtype=torch.float64), torch.arange(1024) // 4, 4)
    small = Sample(untrained.x[:512], untrained.labels[:512], 4)
    same = untrained.labels[:, None] == untrained.labels

    def of_masks(x: Tensor) -> Tensor:
        return ContextualLoss(4)(x, positive=same)

    def in_a_sum(x: Tensor) -> Tensor:
        return (ContextualLoss(4) + ContrastiveLoss() - ContrastiveLoss())(x, untrained.labels)

    cases: dict[str, tuple[Callable[[], object], int]] = {
        "large neighborhoods": (lambda: ours(untrained), 1024),
        "few classes": (lambda: ours(untrained._replace(labels=untrained.labels % 2, k=4)), 1024),
        "in a sum": (lambda: assert_near(value_and_gradient(in_a_sum, untrained.x), ours(untrained), 1e-7), 2048),
        "small batch": (lambda: ours(small), 0),
        "small neighborhoods": (lambda: ours(clusters(256, 4, 32, 0.1)), 0),
        "ablation": (lambda: ours(untrained, complement=False), 0),
        "corrected": (lambda: ours(untrained, correct_gradient=True), 0),
        "masks": (lambda: value_and_gradient(of_masks, untrained.x), 0),
    }
    for name, (run, size) in cases.items():
        sizes.clear()
        run()
        assert sum(sizes) == size, name
    with monkeypatch.context() as patched:
        patched.setattr(contextual_loss, "MIN_TILED_SAMPLES", 10**9)
        dense = ours(untrained)
    assert_near(ours(untrained), dense, 1e-10)


def test_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little more than half a matrix for E and a quarter for P, and no larger piece."""
    monkeypatch.setattr(packed_matrices, "TILE", 128)
    monkeypatch.setattr(tiled, "default_tile_rows", lambda *_: 128)
    n, d = 1024, 16
    x = F.normalize(1 + 0.3 * torch.randn(n, d)).requires_grad_()
    labels, variant = torch.arange(n) // 4, ContextualLoss(4).variant

    def run() -> object:
        return tiled_loss(x, labels, 4, variant).backward()

    assert largest_allocation(run) < 0.57 * 4 * n**2
    assert peak_and_kept(run)[0] < 1.45 * 4 * n**2


def test_a_bit_matrix() -> None:
    values = torch.rand(37, 37, generator=torch.Generator().manual_seed(0)) < 0.5
    matrix = BitMatrix(37)
    matrix.set(slice(0, 16), slice(0, 37), values[:16])
    matrix.set(slice(16, 37), slice(8, 37), values[16:, 8:])
    matrix.set(slice(16, 37), slice(0, 8), values[16:, :8])
    torch.testing.assert_close(matrix.tile(slice(3, 30), slice(8, 29), torch.bool), values[3:30, 8:29])
    torch.testing.assert_close(matrix.read_rows(slice(5, 9), torch.empty(4, 37)), values[5:9].float())
    torch.testing.assert_close(matrix.row_sums(torch.float64), values.sum(dim=1).double())


def test_a_symmetric_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_matrices, "TILE", 8)
    matrix = SymmetricMatrix(19, torch.float64)
    for place in matrix.places:
        matrix[place].normal_()
        if place[0] == place[1]:
            matrix[place].add_(matrix[place].T.clone())
    whole = torch.cat([torch.cat([matrix[i, j] for j in range(3)], dim=1) for i in range(3)])
    torch.testing.assert_close(whole, whole.T)
    torch.testing.assert_close(matrix.sum_of_squares(), whole.square().sum())


def test_the_sum_of_many_squares_has_the_precision_of_float32() -> None:
    matrix = SymmetricMatrix(1024, torch.float32)
    for place in matrix.places:
        matrix[place].fill_(0.1)
    expected = torch.tensor(0.1).double() ** 2 * 1024**2
    torch.testing.assert_close(matrix.sum_of_squares().double(), expected, rtol=1e-6, atol=0)
