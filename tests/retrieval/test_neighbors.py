from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vicinal.errors import InputError
from vicinal.retrieval import neighbors, scores, top_k


def lattice(rows: int, dim: int, seed: int) -> np.ndarray:
    """Vectors whose products are exact in float32, with a great many ties: unit vectors of entries 0 and +-1/2."""
    rng = np.random.default_rng(seed)
    vectors = np.zeros((rows, dim))
    for row in vectors:
        row[rng.choice(dim, 4, replace=False)] = rng.choice([-0.5, 0.5], 4)
    return vectors


def brute_force(queries, gallery, k, left_out=None) -> tuple[np.ndarray, np.ndarray]:
    """Full stable sort of all similarities in float64."""
    similarities = queries @ gallery.T
    if left_out is not None:
        similarities[left_out] = -np.inf
    order = np.argsort(-similarities, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(similarities, order, axis=1), order


@pytest.mark.parametrize("k", [1, 3, 40])
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, torch.float16])
def test_equals_brute_force_with_ties(k: int, kind) -> None:
    queries, gallery = lattice(33, 6, 0), lattice(40, 6, 1)
    wanted_scores, wanted = brute_force(queries, gallery, k)
    as_kind = (lambda x: torch.from_numpy(x).to(kind)) if isinstance(kind, torch.dtype) else (lambda x: x.astype(kind))
    found = top_k(as_kind(queries), as_kind(gallery), k)
    np.testing.assert_array_equal(found.indices, wanted)
    np.testing.assert_array_equal(found.scores, wanted_scores)
    assert found.scores.dtype == np.float32
    assert found.indices.dtype == np.int64


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(1, 50), st.integers(1, 50), st.integers(0, 10**6), st.integers(1, 40))
def test_any_size_chunk_and_tie(queries: int, gallery: int, k: int, seed: int, chunk: int) -> None:
    k = min(k, gallery)
    left, right = lattice(queries, 5, seed), lattice(gallery, 5, seed + 1)
    np.testing.assert_array_equal(top_k(left, right, k, chunk=chunk).indices, brute_force(left, right, k)[1])


@pytest.mark.parametrize("chunk", [None, 1, 7])
@pytest.mark.parametrize("columns", [256, 1000, 10**6])
def test_blocks_do_not_matter(monkeypatch, chunk, columns) -> None:
    rng = np.random.default_rng(0)
    gallery = rng.standard_normal((2500, 24)).astype(np.float32)
    gallery[rng.integers(0, 2500, 900)] = gallery[17]  # duplicates on both sides of every cut
    wanted = top_k(gallery[:40], gallery, 30, exclude=np.arange(40))
    monkeypatch.setattr(neighbors, "_columns_within_budget", lambda rows, k: columns)
    found = top_k(gallery[:40], gallery, 30, exclude=np.arange(40), chunk=chunk)
    np.testing.assert_array_equal(found.indices, wanted.indices)
    np.testing.assert_array_equal(found.scores, wanted.scores)
    unit = gallery.astype(np.float64) / np.linalg.norm(gallery.astype(np.float64), axis=1, keepdims=True)
    reference = np.sort(np.where(np.eye(40, 2500) > 0, -np.inf, unit[:40] @ unit.T), axis=1)[:, ::-1][:, :30]
    np.testing.assert_allclose(found.scores, reference, atol=1e-6)


def test_collapsed_embeddings_come_in_gallery_order() -> None:
    found = top_k(np.ones((5, 3)), np.ones((300, 3)), 9, exclude=np.array([0, 4, -1, 299, 8]))
    assert found.indices.tolist() == [
        [1, 2, 3, 4, 5, 6, 7, 8, 9],
        [0, 1, 2, 3, 5, 6, 7, 8, 9],
        [0, 1, 2, 3, 4, 5, 6, 7, 8],
        [0, 1, 2, 3, 4, 5, 6, 7, 8],
        [0, 1, 2, 3, 4, 5, 6, 7, 9],
    ]


def test_order_does_not_depend_on_what_else_is_in_the_gallery() -> None:
    angles = np.array([0.0, 0.01])
    gallery = np.stack([np.cos(angles), np.sin(angles)], axis=1) * [[1.0009], [1.0]]
    query = np.array([[np.cos(0.006), np.sin(0.006)]])
    alone, beside = top_k(query, gallery, 2), top_k(query, np.vstack([gallery, [[-2.0, 0.0]]]), 2)
    assert alone.indices.tolist() == beside.indices.tolist() == [[1, 0]]
    assert alone.scores.tolist() == beside.scores.tolist()
    assert alone.scores.max() < 1 + 1e-6


def test_groups_are_left_out() -> None:
    vectors = lattice(60, 6, 3)
    groups = np.random.default_rng(0).integers(-1, 5, 60)
    itself = np.arange(60)
    left_out = ((groups[:, None] == groups) & (groups[:, None] >= 0)) | np.eye(60, dtype=bool)
    k = int((60 - left_out.sum(1)).min())
    found = top_k(vectors, vectors, k, exclude=itself, query_groups=groups, gallery_groups=groups, chunk=13)
    np.testing.assert_array_equal(found.indices, brute_force(vectors, vectors, k, left_out)[1])
    with pytest.raises(InputError, match=f"k = {k + 1} is larger than the {k} gallery images left for query"):
        top_k(vectors, vectors, k + 1, exclude=itself, query_groups=groups, gallery_groups=groups)


def test_memory_is_bounded(monkeypatch) -> None:
    made = []
    build = scores.ScoreBlock.__init__
    monkeypatch.setattr(
        neighbors.ScoreBlock, "__init__", lambda self, *size: (build(self, *size), made.append(self._buffer.nbytes))[0]
    )
    vectors = np.ones((70_000, 1), dtype=np.float32)
    top_k(vectors[:300], vectors, 5)
    assert max(made) <= scores.SCORE_BYTES * 1.1


def test_bad_input() -> None:
    vectors = lattice(10, 6, 0)
    with pytest.raises(InputError, match="k = 50 is larger than the gallery of 10 images; use k <= 10"):
        top_k(vectors, vectors, 50)
    with pytest.raises(InputError, match="k = 50 is larger than the gallery of 10 images; use k <= 9"):
        top_k(vectors, vectors, 50, exclude=np.arange(10))
    with pytest.raises(InputError, match="k = 10 is larger than the 9 gallery images left for query 0"):
        top_k(vectors, vectors, 10, exclude=np.arange(10))
    with pytest.raises(InputError, match="k = 0"):
        top_k(vectors, vectors, 0)
    for chunk in (0, -1):
        with pytest.raises(InputError, match=f"chunk = {chunk} is impossible; use chunk >= 1"):
            top_k(vectors, vectors, 1, chunk=chunk)
    with pytest.raises(InputError, match="queries have 6 dimensions, the gallery has 5"):
        top_k(vectors, vectors[:, :5], 1)
    with pytest.raises(InputError, match="exclude has shape"):
        top_k(vectors, vectors, 1, exclude=np.arange(3))
    with pytest.raises(InputError, match="exclude names gallery row 10"):
        top_k(vectors, vectors, 1, exclude=np.arange(1, 11))
    with pytest.raises(InputError, match="go together"):
        top_k(vectors, vectors, 1, query_groups=np.arange(10))
    broken = vectors.copy()
    broken[4, 2] = np.nan
    with pytest.raises(InputError, match="gallery vector 4 holds NaN"):
        top_k(vectors, broken, 1)


def test_no_queries() -> None:
    assert top_k(np.empty((0, 6)), lattice(4, 6, 0), 3).indices.shape == (0, 3)
