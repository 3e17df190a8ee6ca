from typing import Any

import numpy as np
import pytest
import torch

from tests.refusals import refused_call
from vicinal.retrieval import UnitVectors
from vicinal.retrieval.scores import ScoreBuffer, pair_scores
from vicinal.utils.errors import InputError


def unit(rows: int, dim: int, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((rows, dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def scores(queries: np.ndarray, gallery: np.ndarray) -> torch.Tensor:
    left, right = UnitVectors(queries, "query"), UnitVectors(gallery, "gallery vector")
    return ScoreBuffer(len(left), len(right), left.device).fill(left.block(0, len(left)), right, 0, len(right)).clone()


@pytest.mark.parametrize("dim", [1, 3, 100, 512, 2048])
def test_score_of_a_pair_depends_on_the_pair_alone(dim: int) -> None:
    queries, gallery = unit(70, dim), 1.0005 * unit(701, dim, seed=1)
    whole = scores(queries, gallery)
    order = np.random.default_rng(2).permutation(701)
    assert torch.equal(scores(queries, gallery[order]), whole[:, order])
    assert torch.equal(scores(queries[5:6], gallery[300:301]), whole[5:6, 300:301])
    assert torch.equal(scores(queries[:3], gallery[690:]), whole[:3, 690:])


@pytest.mark.filterwarnings("error")
def test_any_precision_and_memory_layout_is_read(tmp_path) -> None:
    vectors = unit(5, 8)
    arrays = [vectors.astype(dtype) for dtype in (np.float16, np.float32, np.float64)]
    tensors = [torch.from_numpy(vectors).to(dtype) for dtype in (torch.float16, torch.bfloat16, torch.float32)]
    for given in (*arrays, *tensors):
        block = UnitVectors(given, "vector").block(0, 5)
        assert block.dtype == torch.float32
        np.testing.assert_allclose(block.numpy(), vectors, atol=5e-3)
    np.save(tmp_path / "vectors.npy", vectors)
    for given in (np.load(tmp_path / "vectors.npy", mmap_mode="r"), vectors.astype(">f4"), np.asfortranarray(vectors)):
        np.testing.assert_allclose(UnitVectors(given, "vector").block(0, 5), vectors, rtol=1e-6)
    np.testing.assert_allclose(UnitVectors(vectors[::-1], "vector").block(0, 5), vectors[::-1], rtol=1e-6)


def test_rows_select_and_order_and_materialized_vectors_are_the_same_bits() -> None:
    given, rows = unit(10, 7), np.array([3, 0])
    vectors = UnitVectors(3 * given, "vector", rows=np.array([7, 2, 2, 9]))
    np.testing.assert_allclose(vectors.block(1, 4), given[[2, 2, 9]], rtol=1e-6)
    np.testing.assert_allclose(vectors.take(rows), given[[9, 7]], rtol=1e-6)
    whole = vectors.materialized()
    assert whole.block(0, 2).data_ptr() == whole.block(0, 4).data_ptr()  # not computed again
    assert torch.equal(whole.block(1, 9), vectors.block(1, 9))
    assert torch.equal(whole.take(rows), vectors.take(rows))
    assert torch.equal(whole.subset(rows).block(0, 2), vectors.take(rows))


def test_very_large_and_very_small_entries() -> None:
    vectors = (unit(5, 1000).clip(-0.1, 0.1) * 10).astype(np.float64)
    for size in (3e38, 1e37, 1e-20, 1e-37, 1e-43):
        given = (vectors * size).astype(np.float32)
        wanted = given.astype(np.float64)
        wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
        np.testing.assert_allclose(UnitVectors(given, "v").block(0, 5), wanted, atol=1e-6)
    vectors = unit(5, 8).astype(np.float64)
    for size in (1e-310, 1e-60, 1e39, 1e300):  # beyond float32
        scaled = vectors * size
        for given in (scaled, scaled.astype(">f8"), torch.from_numpy(scaled)):
            np.testing.assert_allclose(UnitVectors(given, "vector").block(0, 5), vectors, atol=1e-6)


def test_row_that_is_not_finite_is_named() -> None:
    vectors = unit(9000, 3)
    for value in (np.nan, np.inf, -np.inf):
        vectors[8123, 1] = value
        refused_call("query 8123 holds NaN or infinity", UnitVectors, vectors, "query")
        refused_call("embedding 8123 holds", lambda: UnitVectors(vectors, "embedding", rows=np.array([3, 8123])))
        UnitVectors(vectors, "embedding", rows=np.array([3, 4]))


def test_float32_in_float64_is_read_exactly() -> None:
    vectors = unit(500, 33) * np.float32(3.7)
    blocks = [UnitVectors(vectors.astype(dtype), "v").block(0, 500) for dtype in (np.float32, np.float64)]
    assert torch.equal(*blocks)


def test_other_arrays_than_matrices_of_numbers_are_refused() -> None:
    refused_call(r"shape \[3\]", lambda: UnitVectors(np.zeros(3), "query"))
    refused_call("type <U1", lambda: UnitVectors(np.array([["a"]]), "query"))
    for dtype in (torch.complex64, torch.bool):
        with pytest.raises(InputError, match=f"query embeddings are of type {dtype}; expected floating-point numbers"):
            UnitVectors(torch.ones(2, 2, dtype=dtype), "query")


def test_scores_are_never_rounded_whatever_torch_s_settings_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, mm, seen = torch.backends.mkldnn.matmul, torch.mm, []

    def product(*args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append(settings.fp32_precision)
        return mm(*args, **kwargs)

    monkeypatch.setattr(torch, "mm", product)
    vectors = UnitVectors(np.eye(3, dtype=np.float32), "vector")
    torch.set_float32_matmul_precision("medium")
    try:
        ScoreBuffer(3, 3, torch.device("cpu")).fill(vectors.block(0, 3), vectors, 0, 3)
        ScoreBuffer(3, 3, torch.device("cpu")).product(vectors.block(0, 3), vectors.block(0, 3))
        pair_scores(vectors, vectors, np.array([0]), np.array([1]))
        assert settings.fp32_precision == "bf16"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert seen == ["ieee"] * 3
