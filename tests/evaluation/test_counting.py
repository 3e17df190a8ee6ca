from itertools import product

import numpy as np
import pytest
import torch

from vicinal.evaluation import Relevance
from vicinal.evaluation.counting import counter as counting
from vicinal.evaluation.counting import positives as module
from vicinal.evaluation.counting.counter import Counter, DeviceCounter
from vicinal.evaluation.counting.positives import Positives, ranked_positives
from vicinal.retrieval import UnitVectors
from vicinal.retrieval.scores import ScoreBuffer
from vicinal.utils import devices

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 0.25, -0.25, 1e-30, -1e-30, 1e-45, 0.5 + 2**-24, 3e30, -3e30]


def setting(scores: np.ndarray, positives: np.ndarray) -> tuple[Positives, Relevance]:
    """The same positives for all queries."""
    queries = len(scores)
    order = np.argsort(-scores[:, positives], axis=1, kind="stable")
    ranked = np.take_along_axis(scores[:, positives], order, axis=1) + np.float32(0)  # without -0.0
    labels = np.zeros(scores.shape[1], dtype=np.int64)
    labels[positives] = 1
    first, counts = np.arange(queries + 1) * len(positives), np.full(queries, len(positives))
    found = Positives(ranked.ravel(), positives[order].astype(np.int32).ravel(), first, counts)
    return found, Relevance(np.ones(queries, dtype=np.int64), labels)


def counters(found: Positives, relevance: Relevance) -> list[Counter | DeviceCounter]:
    return [Counter(found, relevance, 0), DeviceCounter(found, relevance, 0, torch.device("cpu"))]


def check(scores: np.ndarray, found: Positives, counter: Counter | DeviceCounter) -> None:
    """Compare with what ranks before each positive, and whether anything has its score, over all pairs."""
    others = np.setdiff1d(np.arange(scores.shape[1]), found.rows)
    num_before = counter.num_before.reshape(len(scores), -1).cumsum(axis=1)
    is_tied = counter.is_tied.reshape(len(scores), -1)
    for query, row in enumerate(scores[:, others]):
        slots = slice(found.first[query], found.first[query + 1])
        values, columns = found.scores[slots, None], found.rows[slots, None]
        ahead = (row > values) | ((row == values) & (others < columns))
        assert (num_before[query, : len(values)] == ahead.sum(axis=1)).all()
        _, equal = np.unique(values[:, 0], return_inverse=True)  # positives of one score
        any_tied = np.bincount(equal, weights=is_tied[query])[equal] > 0
        assert (any_tied == (row == values).any(axis=1)).all()


@pytest.mark.parametrize("count", [1, 40, 2900])
@pytest.mark.parametrize("kind", ["random", "rounded", "narrow", "outlier", "lattice", "special"])
def test_long_rows_with_few_and_many_positives(count: int, kind: str) -> None:
    rng = np.random.default_rng(count)
    scores = rng.standard_normal((19, 3000)).astype(np.float32)
    positives = np.sort(rng.choice(3000, count, replace=False))
    if kind == "rounded":
        scores = scores.round(2)
    if kind == "narrow":
        scores = np.float32(0.9) + scores * np.float32(1e-6)
    if kind == "lattice":
        scores = rng.integers(0, 3, scores.shape).astype(np.float32)
    if kind == "special":
        scores = rng.choice(np.float32(SPECIAL), scores.shape)
    if kind == "outlier":
        scores[:, positives[0]] = -1000
    found, relevance = setting(scores, positives)
    for counter in counters(found, relevance):
        counter.count(torch.from_numpy(scores.copy())[:11], 0, 0)
        counter.count_transposed(torch.from_numpy(scores.T[:2000].copy())[:, 11:], 11, 0)
        counter.count_transposed(torch.from_numpy(scores.T[2000:].copy())[:, 11:], 11, 2000)
        check(scores, found, counter)


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("kind", ["random", "lattice", "special"])
def test_the_kernel_counts_the_same(count: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In Triton's interpreter, in several blocks of positives and of scores."""
    pytest.importorskip("triton", reason="the kernel needs Triton, which some builds of torch lack")
    monkeypatch.setattr(counting, "uses_kernel", lambda *_: True)
    monkeypatch.setattr(devices, "MAX_POSITIVES", 16)
    rng = np.random.default_rng(count)
    scores = rng.standard_normal((4, 300)).astype(np.float32)
    positives = np.sort(rng.choice(300, count, replace=False))
    if kind == "lattice":
        scores = rng.integers(0, 3, scores.shape).astype(np.float32)
    if kind == "special":
        scores = rng.choice(np.float32(SPECIAL), scores.shape)
    found, relevance = setting(scores, positives)
    counter = DeviceCounter(found, relevance, 0, torch.device("cpu"))
    counter.count(torch.from_numpy(scores)[:3], 0, 0)
    counter.count_transposed(torch.from_numpy(scores.T[:170].copy())[:, 3:], 3, 0)
    counter.count_transposed(torch.from_numpy(scores.T[170:].copy())[:, 3:], 3, 170)
    check(scores, found, counter)


@pytest.mark.parametrize("classes", [1, 3, 40, 500])
def test_scores_are_those_of_the_whole_product(monkeypatch, classes: int) -> None:
    rng = np.random.default_rng(classes)
    array, labels, groups = rng.standard_normal((300, 33)), rng.integers(-1, classes, 300), rng.integers(-1, 3, 300)
    queries, gallery = UnitVectors(array[:170], "query"), UnitVectors(array, "gallery vector")
    relevance = Relevance(labels[:170], labels, np.arange(170), groups[:170], groups)
    scores = ScoreBuffer(170, 300, queries.device).fill(queries.block(0, 170), gallery, 0, 300).numpy()
    for max_pairs, block in product((2**20, 50), (4096, 17)):
        monkeypatch.setattr(module, "MAX_PAIRS", max_pairs)
        monkeypatch.setattr(module, "BLOCK_ROWS", block)
        found = ranked_positives(queries, gallery, relevance, start=20, stop=160)
        for number, query in enumerate(range(20, 160)):
            rows = relevance.positives(query)
            rows = rows[np.lexsort((rows, -scores[query, rows]))]
            first, count = found.first[number], found.counts[number]
            np.testing.assert_array_equal(found.rows[first : first + count], rows)
            np.testing.assert_array_equal(found.scores[first : first + count], scores[query, rows])
