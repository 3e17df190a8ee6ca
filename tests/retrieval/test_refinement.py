from typing import Any

import numpy as np
import pytest
import torch

from tests.losses.allocations import peak_and_kept
from tests.models.refiner_reference import PAPER, reference, trained
from tests.refusals import refused_call
from tests.retrieval.reranking.rerank_references import clusters, lattice, nearest, similarities, unit
from vicinal.models import ContextRefiner
from vicinal.retrieval import Refinement, UnitVectors, query_gallery, refine, rerank, top_k

Array = np.ndarray
DIM, K = 12, 4


def refiner(dim: int = DIM, neighbors: int = K, dropout: float = 0.0, **more: Any) -> ContextRefiner:
    """A refiner that moves embeddings far."""
    made = ContextRefiner(dim, depth=2, num_heads=2, neighbors=neighbors, dropout=dropout, **PAPER, **more)
    made.load_state_dict(trained(dim, 2, 2).state_dict())
    return made.eval()


def refined_by(queries: Array, gallery: Array, exclude_self: Array, k: int, depth: int = 2) -> Array:
    """Every query by its k nearest of the gallery without itself, in float64, one by one."""
    units, others, scores = unit(queries), unit(gallery), similarities(queries, gallery)
    model, rows = trained(queries.shape[1], 2, 2), []
    for i, own_row in enumerate(exclude_self):
        context = others[nearest(scores[i], own_row, k)]
        steps = reference(model, torch.from_numpy(units[i : i + 1]), torch.from_numpy(context[None]))
        rows.append(steps[depth, 0].detach().numpy())
    return np.stack(rows)


def test_attention_is_that_of_the_blocks() -> None:
    vectors = np.random.default_rng(0).normal(size=(9, DIM))
    model, unit_vectors = trained(DIM, 2, 2, null_similarity=0.1).float(), UnitVectors(vectors, "embedding")
    context = Refinement(model, neighbors=3).find_context(query_gallery.QueryGallery.leave_one_out(unit_vectors))
    embeddings = unit_vectors.block(0, 9)
    wanted = model.attention_weights(embeddings, embeddings[torch.from_numpy(context)]).detach()
    for depth in (None, 1):
        found = Refinement(model, depth=depth).attention(unit_vectors, unit_vectors, context, chunk_size=4)
        np.testing.assert_allclose(found, wanted[:depth].mean(dim=0), atol=1e-6)
        assert 0 < found.sum(axis=1).max() < 1  # the rest is for the null neighbor


def both_refined(queries: Array, gallery: Array, exclude_self: Array, context: str, k: int = K) -> tuple[Array, Array]:
    """Queries and gallery, refined with this context."""
    everyone = np.arange(len(gallery))
    if context == "gallery":
        return refined_by(queries, gallery, exclude_self, k), refined_by(gallery, gallery, everyone, k)
    outside = np.flatnonzero(exclude_self < 0)
    together = np.concatenate([gallery, queries[outside]])
    whole = refined_by(together, together, np.arange(len(together)), k)
    rows = exclude_self.copy()
    rows[outside] = len(gallery) + np.arange(len(outside))
    return whole[rows], whole[: len(gallery)]


def overlapping() -> tuple[Array, Array, Array]:
    """Queries, a gallery, and the gallery rows of the queries: some are in it, in another order, and some are not."""
    gallery, _ = clusters(40, 6, seed=0, dim=DIM)
    outside, _ = clusters(9, 6, seed=1, dim=DIM)
    inside = np.array([31, 2, 17, 3, 39])
    queries, exclude_self = np.concatenate([outside, gallery[inside]]), np.concatenate([np.full(9, -1), inside])
    order = np.random.default_rng(0).permutation(14)
    return queries[order], gallery, exclude_self[order]


def test_a_set_is_refined_by_its_nearest_neighbors() -> None:
    vectors, _ = clusters(14, 5, seed=0, dim=DIM)
    for k in (0, 1, K, 13):
        found = refine(refiner(), 3 * vectors, neighbors=k)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, refined_by(vectors, vectors, np.arange(14), k), atol=2e-5 * (k + 1))
        assert k == 0 or np.abs(found - vectors).max() > 0.1


def test_depth_and_a_separate_gallery() -> None:
    vectors, queries = clusters(30, 5, seed=0, dim=DIM)[0], clusters(9, 6, seed=1, dim=DIM)[0]
    for depth in (0, 1, 2):
        wanted = refined_by(vectors, vectors, np.arange(30), K, depth)
        np.testing.assert_allclose(refine(refiner(), vectors, depth=depth), wanted, atol=1e-5)
        found = rerank(vectors, vectors, 5, Refinement(refiner(), depth=depth), exclude_self=np.arange(30))
        check_ranking(found, wanted, wanted, np.arange(30))
    wanted = refined_by(queries, vectors, np.full(9, -1), K)
    np.testing.assert_allclose(refine(refiner(), queries, vectors), wanted, atol=1e-5)


def test_result_does_not_depend_on_chunk_size() -> None:
    vectors = np.concatenate([clusters(150, 12, seed=0, dim=DIM)[0], lattice(50, DIM, 0)])
    gallery = vectors[::-1][:90]
    for others in (None, gallery):
        whole = refine(refiner(), vectors, others)
        for chunk_size in (1, 7, 64, 1000):
            np.testing.assert_allclose(refine(refiner(), vectors, others, chunk_size=chunk_size), whole, atol=1e-6)


def contexts(model: ContextRefiner, vectors: Array, **more: Any) -> list[Array]:
    seen: list[Array] = []
    model.register_forward_pre_hook(lambda _, given: seen.extend(given[1].numpy()))
    refine(model, vectors, **more)
    return seen


@pytest.mark.parametrize("chunk_size", [None, 7])
def test_context_has_duplicates_but_not_the_embedding_itself(chunk_size: int | None) -> None:
    vectors = lattice(40, DIM, 0)
    vectors[[3, 11, 30]] = vectors[3]
    vectors[25] = vectors[8]
    copies = [int((vectors == vector).all(axis=1).sum()) for vector in vectors]
    assert {1, 2, 3} <= set(copies)
    for i, context in enumerate(contexts(refiner(), vectors, chunk_size=chunk_size)):
        assert context.shape == (K, DIM)
        assert (context == vectors[i].astype(np.float32)).all(axis=1).sum() == min(copies[i] - 1, K)


def test_fewer_images_than_neighbors() -> None:
    for images in (2, 3, K, K + 1):
        vectors, _ = clusters(images, 2, seed=0, dim=DIM)
        wanted = refined_by(vectors, vectors, np.arange(images), images - 1)
        np.testing.assert_allclose(refine(refiner(neighbors=8), vectors), wanted, atol=1e-5)
        others = refined_by(vectors + 0.1, vectors, np.full(images, -1), images)
        np.testing.assert_allclose(refine(refiner(neighbors=8), vectors + 0.1, vectors), others, atol=1e-5)
        found = rerank(vectors, vectors, images - 1, Refinement(refiner(neighbors=8)), exclude_self=np.arange(images))
        check_ranking(found, wanted, wanted, np.arange(images))


def test_a_single_image_does_not_change_nor_do_images_without_a_gallery() -> None:
    vector, vectors = clusters(1, 1, seed=0, dim=DIM)[0], clusters(30, 5, seed=0, dim=DIM)[0]
    np.testing.assert_allclose(refine(refiner(), vector), vector, atol=1e-6)
    np.testing.assert_allclose(refine(refiner(), vector, neighbors=0), vector, atol=1e-6)
    wanted = refined_by(vector + 0.2, vector, np.array([-1]), 1)
    np.testing.assert_allclose(refine(refiner(), vector + 0.2, vector), wanted, atol=1e-5)
    for context in ("everything", "gallery"):
        queries, gallery = both_refined(vector + 0.2, vector, np.array([-1]), context)
        found = rerank(vector + 0.2, vector, 1, Refinement(refiner(), context))
        np.testing.assert_allclose(found.scores, queries @ gallery.T, atol=1e-5)
        assert rerank(vectors[:0], vectors, 3, Refinement(refiner(), context)).ids.shape == (0, 3)
    assert refine(refiner(), vectors[:0]).shape == refine(refiner(), vectors[:0], vectors).shape == (0, DIM)
    np.testing.assert_allclose(refine(refiner(), vectors, vectors[:0]), vectors, atol=1e-6)


def test_context_of_the_embedding_itself() -> None:
    vectors, _ = clusters(30, 5, seed=0, dim=DIM)
    units = torch.from_numpy(vectors)
    wanted = reference(trained(DIM, 2, 2), units, units[:, None])[-1].detach().numpy()
    method = Refinement(refiner(context="self"))
    np.testing.assert_allclose(refine(method.refiner, vectors), wanted, atol=1e-5)
    np.testing.assert_allclose(refine(method.refiner, vectors[:1]), wanted[:1], atol=1e-5)
    check_ranking(rerank(vectors, vectors, 29, method, exclude_self=np.arange(30)), wanted, wanted, np.arange(30))


def check_ranking(found: Any, queries: Array, gallery: Array, exclude_self: Array) -> None:
    """Scores are those of the refined vectors, best first, and belong to the images beside them."""
    scores = queries @ gallery.T
    inside = exclude_self >= 0
    scores[inside, exclude_self[inside]] = -np.inf
    k = found.ids.shape[1]
    np.testing.assert_allclose(found.scores, -np.sort(-scores, axis=1)[:, :k], atol=2e-5)
    np.testing.assert_allclose(found.scores, np.take_along_axis(scores, found.ids, axis=1), atol=2e-5)
    assert all(len(set(row)) == k for row in found.ids.tolist())


@pytest.mark.parametrize("context", ["everything", "gallery"])
def test_one_set_searches_itself(context: str) -> None:
    vectors, exclude_self = clusters(45, 6, seed=2, dim=DIM)[0], np.arange(45)
    wanted = refined_by(vectors, vectors, exclude_self, K)
    for k in (1, 5, 44):
        found = rerank(vectors, vectors, k, Refinement(refiner(), context), exclude_self=exclude_self)
        check_ranking(found, wanted, wanted, exclude_self)


@pytest.mark.parametrize("context", ["everything", "gallery"])
def test_queries_outside_and_inside_of_the_gallery(context: str) -> None:
    queries, gallery, exclude_self = overlapping()
    for some in (np.arange(14), np.flatnonzero(exclude_self < 0), np.flatnonzero(exclude_self >= 0)):
        wanted = both_refined(queries[some], gallery, exclude_self[some], context)
        for k in (1, 7, 39):
            found = rerank(queries[some], gallery, k, Refinement(refiner(), context), exclude_self=exclude_self[some])
            check_ranking(found, *wanted, exclude_self[some])


def test_excluded_groups_may_be_neighbors() -> None:
    vectors, groups = clusters(60, 8, seed=3, dim=DIM)[0], np.random.default_rng(0).integers(0, 4, 60)
    refined = refined_by(vectors, vectors, np.arange(60), K)
    grouped = {"exclude_self": np.arange(60), "query_groups": groups, "gallery_groups": groups}
    ranking = rerank(vectors, vectors, 5, Refinement(refiner()), **grouped)
    np.testing.assert_array_equal(ranking.ids, top_k(refined, refined, 5, **grouped).ids)


def test_training_modes_are_restored_and_dropout_is_off() -> None:
    vectors, _ = clusters(30, 5, seed=0, dim=DIM)
    model = refiner(dropout=0.5).train()
    model.blocks[1].eval()
    modes = [module.training for module in model.modules()]
    assert len(set(modes)) == 2
    np.testing.assert_array_equal(refine(model, vectors), refine(refiner(), vectors))
    assert [module.training for module in model.modules()] == modes
    rerank(vectors, vectors + 0.1, 3, Refinement(model))
    assert [module.training for module in model.modules()] == modes
    model.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        refine(model, vectors)
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_embeddings() -> None:
    n, k, dim = 20_000, 64, 32
    rng = np.random.default_rng(0)
    vectors = UnitVectors(rng.standard_normal((n, dim), dtype=np.float32), "vector")
    method = Refinement(refiner(dim, k))
    rows = rng.integers(0, n, (n, k))

    def peak(some: int) -> int:
        return peak_and_kept(lambda: method.refine_vectors(vectors.subset(np.arange(some)), vectors, rows[:some]))[0]

    method.refine_vectors(vectors.subset(np.arange(9)), vectors, rows[:9])  # what libraries take once
    whole = peak(n)
    assert whole < n * k * dim * 4 / 2
    assert whole < 1.05 * peak(n // 2)  # it does not grow


def test_refiners_of_any_precision() -> None:
    vectors = clusters(20, 4, seed=0, dim=DIM)[0]
    for dtype, atol in ((torch.float64, 1e-6), (torch.bfloat16, 0.05), (torch.float16, 0.05)):
        found = refine(refiner().to(dtype), vectors)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, refine(refiner(), vectors), atol=atol)


def test_bad_arguments() -> None:
    model, alone, vectors, others = refiner(), refiner(context="self"), lattice(9, DIM, 0), lattice(9, 8, 0)
    for call, message in (
        (lambda: Refinement(model, "all"), "Refinement: context = 'all' must be everything or gallery"),
        (lambda: Refinement(model, depth=3), "depth = 3 is out of range; use 0 to 2"),
        (lambda: Refinement(model, neighbors=1.5), "Refinement: neighbors = 1.5 must be at least"),
        (lambda: Refinement(alone, neighbors=3), "neighbors = 3, but the refiner has context = self"),
        (lambda: refine(model, vectors, neighbors=-2), "neighbors = -2 must be at least"),
        (lambda: refine(model, vectors, chunk_size=0), "chunk_size = 0 is invalid"),
        (lambda: refine(model, others), "embeddings have 8 dimensions, the refiner is for 12"),
        (lambda: rerank(others, others, 3, Refinement(model, "gallery")), "embeddings have 8 dimensions, the refiner"),
        (lambda: refine(model, vectors, others), "queries have 12 dimensions, the gallery has 8"),
    ):
        refused_call(message, call)


def test_collapsed_and_zero_vectors() -> None:
    for vectors in (np.ones((20, DIM)), np.concatenate([np.zeros((2, DIM)), lattice(9, DIM, 0)])):
        assert np.isfinite(refine(refiner(), vectors)).all()
