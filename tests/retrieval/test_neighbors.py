import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusals import refused_call
from tests.retrieval.reranking.rerank_references import lattice
from vicinal.retrieval import neighbors, scores, top_k
from vicinal.utils.errors import InputError


def brute_force(queries, gallery, k, excluded=None) -> tuple[np.ndarray, np.ndarray]:
    """Full stable sort of all similarities in float64."""
    similarities = queries @ gallery.T
    if excluded is not None:
        similarities[excluded] = -np.inf
    order = np.argsort(-similarities, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(similarities, order, axis=1), order


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(1, 50), st.integers(1, 50), st.integers(0, 10**6), st.integers(1, 40))
def test_any_size_and_chunk_size_with_ties(queries: int, gallery: int, k: int, seed: int, chunk_size: int) -> None:
    k = min(k, gallery)
    left, right = lattice(queries, 5, seed), lattice(gallery, 5, seed + 1)
    found, (wanted_scores, wanted) = top_k(left, right, k, chunk_size=chunk_size), brute_force(left, right, k)
    np.testing.assert_array_equal(found.ids, wanted)
    np.testing.assert_array_equal(found.scores, wanted_scores)
    assert (found.scores.dtype, found.ids.dtype) == (np.float32, np.int64)


def test_result_does_not_depend_on_block_sizes(monkeypatch) -> None:
    rng = np.random.default_rng(0)
    gallery = rng.standard_normal((2500, 24)).astype(np.float32)
    gallery[rng.integers(0, 2500, 900)] = gallery[17]  # duplicates on both sides of every cut
    wanted = top_k(gallery[:40], gallery, 30, exclude_self=np.arange(40))
    for columns, chunk_size in itertools.product((256, 1000, 10**6), (None, 1, 7)):
        monkeypatch.setattr(neighbors, "_columns_within_budget", lambda *_, columns=columns: columns)
        found = top_k(gallery[:40], gallery, 30, exclude_self=np.arange(40), chunk_size=chunk_size)
        np.testing.assert_array_equal(found.ids, wanted.ids)
        np.testing.assert_array_equal(found.scores, wanted.scores)
    unit = gallery.astype(np.float64) / np.linalg.norm(gallery.astype(np.float64), axis=1, keepdims=True)
    reference = np.sort(np.where(np.eye(40, 2500) > 0, -np.inf, unit[:40] @ unit.T), axis=1)[:, ::-1][:, :30]
    np.testing.assert_allclose(wanted.scores, reference, atol=1e-6)


def test_groups_are_excluded() -> None:
    vectors = lattice(60, 6, 3)
    groups = np.random.default_rng(0).integers(-1, 5, 60)
    itself = np.arange(60)
    excluded = ((groups[:, None] == groups) & (groups[:, None] >= 0)) | np.eye(60, dtype=bool)
    k = int((60 - excluded.sum(1)).min())
    found = top_k(vectors, vectors, k, exclude_self=itself, query_groups=groups, gallery_groups=groups, chunk_size=13)
    np.testing.assert_array_equal(found.ids, brute_force(vectors, vectors, k, excluded)[1])
    with pytest.raises(InputError, match=f"k = {k + 1} is larger than the {k} gallery images left for query"):
        top_k(vectors, vectors, k + 1, exclude_self=itself, query_groups=groups, gallery_groups=groups)


def test_memory_is_bounded(monkeypatch) -> None:
    made = []
    build = scores.ScoreBuffer.__init__
    monkeypatch.setattr(
        neighbors.ScoreBuffer, "__init__", lambda self, *size: (build(self, *size), made.append(self._buffer.nbytes))[0]
    )
    monkeypatch.setattr(scores, "SCORE_BYTES", 2**24)
    vectors = np.ones((20_000, 1), dtype=np.float32)
    top_k(vectors[:300], vectors, 5)
    assert max(made) <= 2**24 * 1.1


def test_bad_input() -> None:
    vectors = lattice(10, 6, 0)
    broken = vectors.copy()
    broken[4, 2] = np.nan
    for gallery, k, arguments, message in (
        (vectors, 50, {}, "k = 50 is larger than the gallery of 10 images; use k <= 10"),
        (vectors, 50, {"exclude_self": np.arange(10)}, "k = 50 is larger than the gallery of 10 images; use k <= 9"),
        (vectors, 10, {"exclude_self": np.arange(10)}, "k = 10 is larger than the 9 gallery images left for query 0"),
        (vectors, 0, {}, "k = 0"),
        (vectors, 1, {"chunk_size": 0}, "chunk_size = 0 is invalid"),
        (vectors[:, :5], 1, {}, "queries have 6 dimensions, the gallery has 5"),
        (vectors, 1, {"exclude_self": np.arange(3)}, "exclude_self has shape"),
        (vectors, 1, {"exclude_self": np.arange(1, 11)}, "exclude_self names gallery row 10"),
        (vectors, 1, {"query_groups": np.arange(10)}, "go together"),
        (broken, 1, {}, "gallery vector 4 holds NaN"),
    ):
        refused_call(message, top_k, vectors, gallery, k, **arguments)


def test_no_queries() -> None:
    assert top_k(np.empty((0, 6)), lattice(4, 6, 0), 3).ids.shape == (0, 3)
