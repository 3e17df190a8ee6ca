"""Evaluation on a pretend GPU: exactly the metrics of the CPU, and few waits."""

import numpy as np
import pandas as pd
import pytest
import torch

from tests.pretend_device import on_device, pretend_device
from vicinal import Table
from vicinal.data.benchmarks.revisited import GroundTruth
from vicinal.evaluation import Relevance, evaluate, evaluate_arrays, evaluate_revisited
from vicinal.evaluation.counting import positives
from vicinal.evaluation.counting.positives import Positives, ranked_positives
from vicinal.retrieval import UnitVectors

NUM_VECTORS = 30


def table(**more: object) -> Table:
    labels = [each % 6 for each in range(NUM_VECTORS)]
    paths = [f"{each}.png" for each in range(NUM_VECTORS)]
    return Table(pd.DataFrame({"path": paths, "label": labels, **more}))


@pytest.mark.parametrize(
    "columns",
    [
        {},
        {"group": [each // 3 for each in range(NUM_VECTORS)]},
        {
            "is_query": [each < 10 for each in range(NUM_VECTORS)],
            "is_gallery": [each >= 5 for each in range(NUM_VECTORS)],
        },
    ],
    ids=["leave one out", "groups", "queries and gallery"],
)
def test_metrics_are_those_of_the_cpu(columns: dict[str, object]) -> None:
    vectors = torch.randn(NUM_VECTORS, 8, generator=torch.Generator().manual_seed(0))
    expected = evaluate(vectors, table(**columns)).metrics
    with pretend_device() as device:
        found = evaluate(on_device(vectors), table(**columns)).metrics
    assert found == expected
    assert device.waits.total() <= 20, device.waits
    assert device.launches <= 160


def test_what_the_host_holds_is_compared_where_the_queries_are() -> None:
    vectors, labels = torch.randn(12, 3, generator=torch.Generator().manual_seed(0)), np.arange(12) % 3
    rows = {"easy": list(range(4)), "hard": [4, 5], "junk": [6], "bbx": [0, 0, 1, 1]}
    names = {"imlist": [str(row) for row in range(12)], "qimlist": list("abcde")}
    ground_truth = GroundTruth.from_dict({**names, "gnd": [rows] * 5})

    def found(queries: torch.Tensor) -> list[dict[str, float]]:
        arrays = evaluate_arrays(queries, labels[:5], vectors.numpy(), labels)
        revisited = evaluate_revisited(queries, vectors.numpy(), ground_truth, distractors=vectors.numpy())
        return [arrays.metrics, *(each.metrics for each in revisited.values())]

    with pretend_device():
        on_gpu = found(on_device(vectors[:5]))
    assert on_gpu == found(vectors[:5])


def used(found: Positives) -> list[np.ndarray]:
    """What is found, without the slots that are not used."""
    slots = np.concatenate([np.arange(count) + first for first, count in zip(found.first, found.counts, strict=False)])
    return [found.scores[slots], found.rows[slots], found.first, found.counts]


@pytest.mark.parametrize("classes", [1, 40])
def test_positives_are_those_of_the_cpu(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(classes)
    array = torch.from_numpy(rng.standard_normal((300, 9), dtype=np.float32))
    labels, groups = rng.integers(-1, classes, 300), rng.integers(-1, 3, 300)
    relevance = Relevance(labels[:170], labels, np.arange(170), groups[:170], groups)
    given, unlike = (relevance, 20, 160), Relevance(labels, labels + 1000)
    expected = ranked_positives(UnitVectors(array[:170], "query"), UnitVectors(array, "gallery vector"), *given)
    for max_scores, block in ((2**22, 4096), (5000, 17), (50, 4096)):
        monkeypatch.setattr(positives, "GPU_SCORES", max_scores)
        monkeypatch.setattr(positives, "BLOCK_ROWS", block)
        with pretend_device():
            vectors = on_device(array)
            none = ranked_positives(UnitVectors(vectors, "query"), UnitVectors(vectors, "x"), unlike, 0, 300)
            found = ranked_positives(
                UnitVectors(vectors[:170], "query"), UnitVectors(vectors, "gallery vector"), *given
            )
        assert not none.counts.any()
        for one, other in zip(used(expected), used(found), strict=True):
            np.testing.assert_array_equal(one, other, f"{max_scores} {block}")


def test_positives_of_many_queries_take_few_launches_and_one_wait() -> None:
    labels = np.random.default_rng(0).permutation(6000) // 5
    vectors = torch.randn(6000, 4, generator=torch.Generator().manual_seed(0))
    with pretend_device() as device:
        on_gpu = UnitVectors(on_device(vectors), "embedding").materialized()
        launches, waits = device.launches, device.waits.total()
        ranked_positives(on_gpu, on_gpu, Relevance(labels, labels), start=0, stop=6000)
    assert device.waits.total() - waits == 1, device.waits
    assert device.launches - launches <= 40
