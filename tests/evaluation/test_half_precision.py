"""Ranks by products in half precision, with Triton's interpreter, against exact products of integers."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.evaluation.cases import clusters, lattice
from vicinal.evaluation import positive_ranks, ranking
from vicinal.evaluation.counting import half_precision
from vicinal.evaluation.counting.half_precision import HalfScores, half_precision_helps
from vicinal.evaluation.ranking import level_ranks
from vicinal.evaluation.ranks import Ranks
from vicinal.evaluation.relevance import Relevance
from vicinal.retrieval.scores import UnitVectors
from vicinal.utils import kernels, tensor_cores

half_precision_kernels = pytest.importorskip(
    "vicinal.evaluation.counting.half_precision_kernels", reason="needs Triton, which some builds of torch lack"
)
Vectors = np.ndarray


def nearly_equal(rows: int, seed: int) -> Vectors:
    """As the embeddings of an untrained model: all similarities are about 0.99."""
    return np.ones((rows, 24)) + 0.1 * np.random.default_rng(seed).standard_normal((rows, 24))


def neighboring_floats(rows: int, seed: int) -> Vectors:
    """Similarities that differ in the last bits of float32 only, so that half precision decides next to nothing."""
    return np.ones((rows, 24)) + 1e-7 * np.random.default_rng(seed).standard_normal((rows, 24))


def with_zeros(rows: int, seed: int) -> Vectors:
    vectors = clusters(rows, 9, seed)[0]
    vectors[:: rows // 3] = 0
    return vectors


def tiny_entries(rows: int, seed: int) -> Vectors:
    """Differences from the mean with entries that half precision flushes or rounds coarsely."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, 24)) * 10.0 ** rng.integers(-9, 1, (rows, 24))


KINDS: dict[str, Callable[[int, int], Vectors]] = {
    "clusters": lambda rows, seed: clusters(rows, 9, seed)[0],
    "ties": lattice,
    "nearly equal": nearly_equal,
    "neighboring floats": neighboring_floats,
    "equal": lambda rows, _: np.ones((rows, 3)),
    "zeros": with_zeros,
    "tiny entries": tiny_entries,
    "one dimension": lambda rows, seed: np.random.default_rng(seed).standard_normal((rows, 1)),
}


@pytest.fixture(autouse=True)
def in_half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranking takes half precision on a CPU, in small tiles, blocks and parts."""
    monkeypatch.setattr(ranking, "half_precision_helps", lambda *_: True)
    monkeypatch.setattr(ranking, "BLOCK_ROWS", 12)
    monkeypatch.setattr(ranking, "STRIP_ROWS", 5)
    monkeypatch.setattr(half_precision, "BLOCK_ROWS", 12)
    monkeypatch.setattr(half_precision_kernels, "MAX_DIMS", 8)
    monkeypatch.setattr(half_precision_kernels, "MAX_PROGRAMS", 3)
    monkeypatch.setattr(kernels, "MAX_POSITIVES", 4)
    monkeypatch.setattr(kernels, "MAX_PAIRS", 8)


def exact_scores(queries: UnitVectors, gallery: UnitVectors) -> np.ndarray:
    """The products of vectors in units of 2^-30, exact, rounded to float32."""
    one, other = (
        np.floor(each.block(0, len(each)).numpy() * np.float32(2**30) + np.float32(0.5)).astype(np.int64)
        for each in (queries, gallery)
    )
    return ((one @ other.T).astype(np.float32) * np.float32(2.0**-60)).astype(np.float32)


def sorted_ranks(queries: UnitVectors, gallery: UnitVectors, relevance: Relevance) -> tuple[list[int], int]:
    """The ranks of all positives and how many of them are tied, from sorted lists."""
    ranks, ties = [], 0
    excluded, rows = relevance._excluded_pairs, np.arange(len(gallery))
    for query, scores in enumerate(exact_scores(queries, gallery)):
        is_positive = relevance.gallery_labels == relevance.query_labels[query]
        group = excluded.query_groups[query]
        is_of_group = is_positive & (excluded.gallery_groups == group) & (group >= 0)
        is_ranked = (rows != excluded.exclude_self[query]) & ~is_of_group
        order = rows[is_ranked][np.lexsort((rows[is_ranked], -scores[is_ranked]))]
        found = np.flatnonzero(is_positive[order])
        ranks += (found + 1).tolist()
        others = scores[order[~is_positive[order]]]
        ties += sum(int(np.isin(scores[order[rank]], others)) for rank in found)
    return ranks, ties


def summed_up(blocks: list[Ranks]) -> tuple[list[int], int]:
    return np.concatenate([block.ranks for block in blocks]).tolist(), sum(block.num_ties for block in blocks)


FEW_KINDS = [each if each in ("clusters", "ties") else pytest.param(each, marks=pytest.mark.slow) for each in KINDS]


@pytest.mark.parametrize("kind", FEW_KINDS)
def test_ranks_of_a_set_that_searches_itself(kind: str) -> None:
    vectors = UnitVectors(KINDS[kind](26, 0).astype(np.float32), "embedding")
    labels = np.random.default_rng(1).integers(0, 5, 26)
    relevance = Relevance(labels, labels, np.arange(26))
    blocks = list(positive_ranks(vectors, vectors, relevance, chunk_size=7))
    assert summed_up(blocks) == sorted_ranks(vectors, vectors, relevance)


@pytest.mark.parametrize("kind", FEW_KINDS)
def test_ranks_and_ties_of_queries_in_a_gallery_with_groups(kind: str) -> None:
    array, rng = KINDS[kind](24, 2).astype(np.float32), np.random.default_rng(3)
    queries, gallery = UnitVectors(array[:6], "query"), UnitVectors(array[3:], "gallery vector")
    labels, groups = rng.integers(0, 3, 24), rng.integers(-1, 3, 24)
    exclude_self = np.maximum(np.arange(6) - 3, -1)
    relevance = Relevance(labels[:6], labels[3:], exclude_self, groups[:6], groups[3:])
    assert summed_up(list(positive_ranks(queries, gallery, relevance))) == sorted_ranks(queries, gallery, relevance)


def test_excluded_images_with_other_labels_are_not_counted() -> None:
    vectors = UnitVectors(np.ones((12, 4), np.float32), "embedding")  # whose radii are 0
    labels = np.arange(12) % 3
    relevance = Relevance(labels.copy(), labels, exclude_self=np.roll(np.arange(12), 1))
    assert len(relevance.excluded_other_labels()[0]) == 12
    assert summed_up(list(positive_ranks(vectors, vectors, relevance))) == sorted_ranks(vectors, vectors, relevance)


def test_tensors_whose_columns_lie_in_memory_one_after_the_other() -> None:
    by_rows = torch.from_numpy(clusters(10, 3)[0])
    vectors = UnitVectors(by_rows.T.contiguous().T, "embedding")
    labels = np.arange(10) % 3
    relevance = Relevance(labels, labels, np.arange(10))
    assert vectors.kept().block(0, 10).stride() == (1, 10)
    assert summed_up(list(positive_ranks(vectors, vectors, relevance))) == sorted_ranks(vectors, vectors, relevance)


def test_coarse_labels_and_parts_of_the_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "MAX_COUNTED", 90)
    vectors = UnitVectors(clusters(18, 4)[0], "embedding")
    labels = np.random.default_rng(1).integers(0, 6, 18)
    # The interpreter mistakes parts of an array for the whole; of a GPU each has its own memory.
    fine = Relevance(labels.copy(), labels, np.arange(18))
    coarse = Relevance(labels // 3, labels // 3, exclusions=fine)
    found = list(level_ranks(vectors, vectors, [fine, coarse]))
    assert len(found) > 1
    assert summed_up([block[0] for block in found])[0] == sorted_ranks(vectors, vectors, fine)[0]
    own = Relevance(labels // 3, labels // 3, np.arange(18))
    assert summed_up([block[1] for block in found])[0] == sorted_ranks(vectors, vectors, own)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_error_of_a_score_is_within_its_bound(kind: str) -> None:
    vectors = UnitVectors(KINDS[kind](64, 4).astype(np.float32), "embedding").kept()
    half = HalfScores(vectors, vectors, 64, 64)
    sides = half.gallery
    radii = sides.radii[:, None] * sides.radii
    scores = half.product(sides.halves, sides.halves) * radii + (sides.offsets[:, None] + sides.offsets)
    error = (scores.double() - torch.from_numpy(exact_scores(vectors, vectors)).double()).abs()
    assert (error <= half.errors[0] * radii + half.errors[1]).all()
    assert (sides.radii >= half_precision.MIN_RADIUS).all()


def test_the_error_is_small_where_embeddings_are_close_to_each_other() -> None:
    for kind in ("clusters", "nearly equal"):
        vectors = UnitVectors(KINDS[kind](200, 5).astype(np.float32), "embedding").kept()
        half = HalfScores(vectors, vectors, 200, 200)
        scores = exact_scores(vectors, vectors)
        error = half.errors[0] * half.gallery.radii.square().max().item() + half.errors[1]
        spread = scores[np.triu_indices(200, 1)].std()
        assert error < 0.02 * spread, kind


USED = {
    "capability": (8, 6),
    "torch": (2, 10),
    "hip": None,
    "fp16_accumulation": False,
    "pairs": 1,
    "positives": 2,
    "dim": 8192,
}


def pretend_gpu(gpu: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = SimpleNamespace(allow_fp16_accumulation=gpu["fp16_accumulation"])
    monkeypatch.setattr(torch.backends.cuda, "matmul", setting)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: gpu["capability"])
    monkeypatch.setattr(tensor_cores, "_torch_version", lambda: gpu["torch"])
    monkeypatch.setattr(torch.version, "hip", gpu["hip"])
    monkeypatch.setattr(half_precision, "MIN_PAIRS", gpu["pairs"])
    monkeypatch.setattr(half_precision, "has_kernels", lambda _: True)


def on_gpu(vectors: UnitVectors) -> UnitVectors:
    vectors.device = torch.device("cuda")
    return vectors


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"capability": (6, 1)},
        {"torch": (2, 9)},
        {"hip": "6.4"},
        {"fp16_accumulation": True},
        {"pairs": 2**20},
        {"positives": 257},
        {"dim": 48},
    ],
    ids=str,
)
def test_a_gpu_uses_it_for_many_vectors_with_few_positives(other: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = USED | other
    pretend_gpu(gpu, monkeypatch)
    vectors = on_gpu(UnitVectors(np.ones((600, gpu["dim"]), np.float32), "embedding").kept())
    labels = np.arange(600) // gpu["positives"]
    assert half_precision_helps(vectors, vectors, [Relevance(labels, labels)]) == (other == {})


def test_a_gpu_uses_it_for_unit_vectors_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(USED, monkeypatch)
    vectors, labels = UnitVectors(np.ones((10, 32), np.float32), "embedding"), np.arange(10)
    kept, other = on_gpu(vectors.kept()), on_gpu(vectors)
    assert half_precision_helps(kept, kept, [Relevance(labels, labels)])
    assert not half_precision_helps(kept, other, [Relevance(labels, labels)])
    assert not half_precision_helps(other, kept, [Relevance(labels, labels)])


def test_a_gpu_does_not_without_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_gpu(USED, monkeypatch)
    gallery, labels = UnitVectors(np.ones((10, 32), np.float32), "embedding"), np.arange(10)
    queries = on_gpu(gallery.subset(np.arange(0)).kept())
    assert not half_precision_helps(queries, on_gpu(gallery.kept()), [Relevance(labels[:0], labels)])


def test_a_cpu_does_not() -> None:
    vectors = UnitVectors(np.ones((10_000, 32), np.float32), "embedding").kept()
    labels = np.arange(10_000)
    assert not half_precision_helps(vectors, vectors, [Relevance(labels, labels)])
