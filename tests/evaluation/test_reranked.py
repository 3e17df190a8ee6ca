"""Evaluation with re-ranking: against the full re-ranked order, by brute force."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import torch

from tests.evaluation.cases import means, scores_of_hits
from tests.models.refiner_reference import PAPER
from tests.retrieval.reranking import rerank_references as references
from tests.retrieval.reranking.rerank_references import clusters, lattice
from vicinal.data import Table
from vicinal.evaluation import Evaluation, evaluate, evaluate_arrays
from vicinal.models import ContextRefiner
from vicinal.retrieval import (
    ContextualReranking,
    DatabaseAugmentation,
    QueryExpansion,
    ReciprocalReranking,
    Refinement,
    Reranking,
    SequentialReranking,
    refine,
    rerank,
    scores,
)
from vicinal.utils.errors import InputError

REFERENCES = {
    ContextualReranking: references.contextual,
    ReciprocalReranking: references.reciprocal,
    QueryExpansion: references.query_expansion,
    DatabaseAugmentation: references.database_augmentation,
}
EACH = [ContextualReranking(k=7, beta=0.5), ContextualReranking(k=4, epsilon=0.2), ReciprocalReranking(k1=8, k2=3)]
EACH += [QueryExpansion(n=4), DatabaseAugmentation(n=4)]


def check_metrics(
    found: Evaluation, method: Reranking, vectors: np.ndarray, labels: np.ndarray, queries: np.ndarray,
    gallery: np.ndarray, groups: np.ndarray,
) -> None:  # fmt: skip
    """Compare with the full order of the re-ranked scores; `queries` and `gallery` are rows of `vectors`."""
    places = np.array([np.flatnonzero(gallery == row)[0] if row in gallery else -1 for row in queries])
    wanted = REFERENCES[type(method)](vectors[queries], vectors[gallery], places, **dataclasses.asdict(method)).round(9)
    match = labels[queries][:, None] == labels[gallery]
    same_group = (groups[queries][:, None] == groups[gallery]) & (groups[gallery] >= 0)
    ignored = (queries[:, None] == gallery) | (match & same_group)
    rows = []
    for query, row in enumerate(wanted):
        order = [item for item in np.argsort(-row, kind="stable") if not ignored[query, item]]
        rows.append(scores_of_hits(match[query, order].tolist()))
    assert found.metrics == pytest.approx({name: means(rows)[name] for name in found.metrics}, rel=1e-12)


@pytest.mark.parametrize("method", EACH, ids=str)
@pytest.mark.parametrize(("sides", "grouped"), [("one", True), ("two", False)])
def test_equals_brute_force_on_the_whole_order(monkeypatch, method, sides, grouped) -> None:
    vectors, labels = clusters(150, 20, seed=11)
    rng, rows = np.random.default_rng(1), np.arange(150)
    frame, queries, gallery, groups = pd.DataFrame({"label": labels}), rows, rows, np.full(150, -1)
    if sides == "two":  # some images are on both sides
        is_query, is_gallery = rng.random(150) < 0.4, rng.random(150) < 0.7
        frame = frame.assign(is_query=is_query, is_gallery=is_gallery)
        queries, gallery = np.flatnonzero(is_query), np.flatnonzero(is_gallery)
    if grouped:
        groups = rng.integers(0, 4, 150)
        frame = frame.assign(group=groups)
    plain = evaluate(vectors, Table(frame), recall_at=(1, 2))
    found = evaluate(vectors, Table(frame), recall_at=(1, 2), rerank=method)
    check_metrics(found, method, vectors, labels, queries, gallery, groups)
    assert found.metrics != plain.metrics
    assert (found.num_queries, found.num_gallery) == (len(queries), len(gallery))
    monkeypatch.setattr("vicinal.evaluation.ranking._tile_size", lambda *_: (13, 37))
    monkeypatch.setattr("vicinal.evaluation.ranking.MAX_RANKS", 40)
    assert evaluate(vectors, Table(frame), recall_at=(1, 2), rerank=method).metrics == found.metrics


@pytest.mark.parametrize("seed", range(2))
def test_equals_brute_force_with_ties_and_duplicates(seed: int) -> None:
    vectors, labels = lattice(50, 5, seed), np.random.default_rng(seed).integers(0, 9, 50)
    rows, method = np.arange(50), ContextualReranking(k=6, beta=0.37)
    found = evaluate(vectors, Table(pd.DataFrame({"label": labels})), recall_at=(1, 2), rerank=method)
    check_metrics(found, method, vectors, labels, rows, rows, np.full(50, -1))


@pytest.mark.parametrize("method", EACH, ids=str)
def test_chunks_and_arrays_do_not_matter(monkeypatch, method: Reranking) -> None:
    vectors, labels = clusters(130, 15, seed=3)
    table = Table(pd.DataFrame({"label": labels}))
    whole = evaluate(vectors, table, rerank=method)
    monkeypatch.setattr(scores, "SCORE_BYTES", 2**16)
    for chunk in (1, 7, None):
        found = evaluate(vectors, table, rerank=method, chunk_size=chunk)
        for name, values in whole.per_query.items():
            np.testing.assert_array_equal(found.per_query[name], values)
    arrays = evaluate_arrays(vectors, labels, vectors, labels, exclude_self=np.arange(130), rerank=method)
    assert arrays.metrics == whole.metrics


def made_refiner(dim: int) -> ContextRefiner:
    torch.manual_seed(0)
    refiner = ContextRefiner(dim, depth=2, num_heads=1, neighbors=3, **PAPER).eval()
    for block in refiner.blocks:
        torch.nn.init.normal_(block.output, std=0.5)
    return refiner


def test_refinement_evaluates_the_refined_embeddings() -> None:
    vectors, labels = clusters(60, 8, seed=6)
    table, method = Table(pd.DataFrame({"label": labels})), Refinement(made_refiner(vectors.shape[1]))
    found = evaluate(vectors, table, (1,), rerank=method)
    assert (found.stage, found.method) == ("refined", repr(method))
    assert found.metrics == evaluate(refine(method.refiner, vectors), table, (1,)).metrics
    assert found.metrics != evaluate(vectors, table, (1,)).metrics


@pytest.mark.parametrize("method", EACH, ids=str)
@pytest.mark.parametrize("sides", ["one", "two"])
def test_refined_then_reranked_is_reranking_of_the_refined(method: Reranking, sides: str) -> None:
    vectors, labels = clusters(80, 10, seed=7)
    refinement = Refinement(made_refiner(vectors.shape[1]), "everything")
    frame = pd.DataFrame({"label": labels})
    if sides == "two":
        queries = np.arange(80) % 3 == 0
        frame = frame.assign(is_query=queries, is_gallery=~queries)
    both = SequentialReranking(refinement, method)
    refined = refine(refinement.refiner, vectors)
    found = evaluate(vectors, Table(frame), rerank=both).metrics
    assert found == pytest.approx(evaluate(refined, Table(frame), rerank=method).metrics, rel=1e-12)
    assert repr(both) == f"{refinement!r}, then {method!r}"
    if sides == "one":
        rows = np.arange(80)
        found = rerank(vectors, vectors, 20, both, exclude_self=rows)
        wanted = rerank(refined, refined, 20, method, exclude_self=rows)
        np.testing.assert_array_equal(found.ids, wanted.ids)


def test_bad_input() -> None:
    vectors, labels = clusters(10, 2, seed=0)
    table = Table(pd.DataFrame({"label": labels}))
    with pytest.raises(InputError, match="k = 16 is too large for a gallery of 10 images; use k <= 10"):
        evaluate(vectors, table, rerank=ContextualReranking())
    with pytest.raises(InputError, match="queries have 12 dimensions, the gallery has 3"):
        evaluate_arrays(vectors, labels, vectors[:, :3], labels, rerank=QueryExpansion(n=2))
