"""An index of refined embeddings against a reference that sorts all similarities and refines one vector at a time."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from tests.models.refiner_reference import PAPER
from tests.refusals import refused_call
from vicinal.data import Table
from vicinal.models import ContextRefiner
from vicinal.retrieval import Index, UnitVectors, search_images
from vicinal.retrieval.index import faiss_engine, index_state
from vicinal.utils.errors import InputError

DIM = 8


def unit(rows: int, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((rows, DIM)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def table(rows: int, start: int = 0) -> Table:
    return Table(pd.DataFrame({"path": [f"/{n}.png" for n in range(start, start + rows)]}))


def made(neighbors: int = 4, seed: int = 0, model: str | None = None) -> ContextRefiner:
    """A refiner that moves embeddings far; an untrained one would not."""
    torch.manual_seed(seed)
    refiner = ContextRefiner(DIM, depth=2, num_heads=2, neighbors=neighbors, **PAPER).eval()
    for block in refiner.blocks:
        torch.nn.init.normal_(block.output, std=0.5)
    refiner.model_fingerprint = model
    return refiner


def refined_alone(refiner: ContextRefiner, vector: np.ndarray, others: np.ndarray) -> np.ndarray:
    """One vector, refined by its nearest neighbors among the others."""
    nearest = np.argsort(-(others @ vector), kind="stable")[: refiner.neighbors]
    with torch.no_grad():
        return refiner(torch.from_numpy(vector[None]), torch.from_numpy(others[nearest][None]))[0].numpy()


def all_refined_alone(refiner: ContextRefiner, vectors: np.ndarray) -> np.ndarray:
    return np.stack([refined_alone(refiner, vectors[i], np.delete(vectors, i, axis=0)) for i in range(len(vectors))])


def check_neighbors(matches, queries: np.ndarray, gallery: np.ndarray, ids: np.ndarray) -> None:
    """The neighbors are the best gallery rows, which have the given ids, with their scores."""
    scores = queries @ gallery.T
    best = np.argsort(-scores, axis=1)[:, : matches.ids.shape[1]]
    np.testing.assert_array_equal(matches.ids, ids[best])
    np.testing.assert_allclose(matches.scores, np.take_along_axis(scores, best, axis=1), atol=2e-6)


@pytest.mark.parametrize("kind", ["exact", "hnsw"])
@pytest.mark.parametrize("gathered", [None, 9])
def test_search_equals_reference(monkeypatch, kind, gathered) -> None:
    if gathered:
        monkeypatch.setattr(index_state, "MAX_GATHERED", gathered)  # two queries at a time
    refiner, vectors, queries = made(), unit(60), unit(11, seed=1)
    index = Index.build(vectors, table(60), kind, refiner=refiner)
    gallery = all_refined_alone(refiner, vectors)
    assert np.abs(gallery - vectors).max() > 0.3
    refined = np.stack([refined_alone(refiner, query, vectors) for query in queries])
    check_neighbors(index.search(queries * 3, 7, refiner), refined, gallery, np.arange(60))
    assert repr(index) == f"Index({kind}, 60 images, 8 dimensions, refined)"


def test_queries_that_are_in_the_index() -> None:
    refiner, vectors = made(), unit(40)
    vectors[7] = vectors[3]  # a duplicate may be looked at, oneself may not
    index, gallery = Index.build(vectors, table(40), refiner=refiner), all_refined_alone(refiner, vectors)
    queries = vectors[[3, 7, 12, 20]]
    itself = index.search(queries, 5, refiner, query_ids=[3, 7, -1, 20])
    wanted = gallery[[3, 7, 12, 20]]
    wanted[2] = refined_alone(refiner, vectors[12], vectors)  # nobody said that it is in the index: it looks at itself
    assert np.abs(wanted[2] - gallery[12]).max() > 0.01
    np.testing.assert_allclose(itself.scores, np.sort(wanted @ gallery.T, axis=1)[:, :-6:-1], atol=2e-6)
    assert itself.ids[[0, 1, 3], 0].tolist() == [3, 3, 20]  # of the equal 3 and 7 the first comes first
    unsaid = index.search(queries, 5, refiner)
    refined = np.stack([refined_alone(refiner, query, vectors) for query in queries])
    np.testing.assert_allclose(unsaid.scores, np.sort(refined @ gallery.T, axis=1)[:, :-6:-1], atol=2e-6)


def test_many_duplicates_hide_the_query() -> None:
    """Among ten equal embeddings, a search for a few neighbors need not find the query itself."""
    refiner, vectors = made(neighbors=3), np.repeat(unit(3), 10, axis=0)
    index = Index.build(vectors, table(30), refiner=refiner)
    wanted = refined_alone(refiner, vectors[0], vectors[1:])
    seen = index.state.committed.context._nearest(UnitVectors(vectors, "query"), 3, np.arange(30), np.arange(30))
    assert (seen != np.arange(30)[:, None]).all()
    assert (seen // 10 == np.arange(30)[:, None] // 10).all()
    assert index.search(vectors[:10], 1, refiner, np.arange(10)).scores == pytest.approx(np.ones((10, 1)), abs=1e-6)
    np.testing.assert_allclose(index.vectors_of(np.arange(1))[0], wanted, atol=2e-6)


def test_search_images_recognizes_a_query_by_its_path() -> None:
    refiner, vectors = made(), unit(30)
    index, gallery = Index.build(vectors, table(30), refiner=refiner), all_refined_alone(refiner, vectors)
    strangers = Table(pd.DataFrame({"path": ["/12.png", "/stranger.png", "/30.png"]}))
    for leave_out in (False, True):
        found = search_images(index, vectors[[12, 12, 12]], strangers, 3, leave_out, refiner)
        scores = gallery[12] @ gallery.T
        best = np.argsort(-scores)[leave_out : 3 + leave_out]  # the first is itself
        assert [match["id"] for match in found[0].matches] == best.tolist()
        assert [match["score"] for match in found[0].matches] == pytest.approx(scores[best].tolist(), abs=2e-6)
        refined = refined_alone(refiner, vectors[12], vectors)
        for each in found[1:]:
            assert each.matches[0]["score"] == pytest.approx((gallery @ refined).max(), abs=2e-6)
    without_paths = Table(pd.DataFrame(index=range(1)))
    (found,) = search_images(index, vectors[12:13], without_paths, 1, True, refiner)
    assert found.matches[0]["score"] == pytest.approx((gallery @ refined).max(), abs=2e-6)


@pytest.mark.parametrize("kind", ["exact", "hnsw"])
def test_deleted_images_are_not_neighbors(kind) -> None:
    refiner, vectors = made(), unit(40)
    index = Index.build(vectors, table(40), kind, refiner=refiner)
    gallery, queries = all_refined_alone(refiner, vectors)[10:], vectors[:3] + 0.01
    index.delete(np.arange(10))  # among them what is nearest to the queries
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    refined = np.stack([refined_alone(refiner, query, vectors[10:]) for query in queries])
    check_neighbors(index.search(queries, 5, refiner), refined, gallery, np.arange(10, 40))
    index.add(queries, table(3, 40), refiner)
    others = [np.concatenate([vectors[10:], np.delete(queries, i, axis=0)]) for i in range(3)]
    wanted = np.stack([refined_alone(refiner, query, other) for query, other in zip(queries, others, strict=True)])
    np.testing.assert_allclose(index.vectors_of(np.arange(40, 43)), wanted, atol=2e-6)


@pytest.mark.parametrize("kind", ["exact", "hnsw"])
def test_added_images_are_refined_by_all_and_change_no_other(kind) -> None:
    refiner, vectors = made(), unit(50)
    index = Index.build(vectors[:30], table(30), kind, refiner=refiner)
    index.delete([4, 9])
    assert index.add(vectors[30:], table(20, 30), refiner).tolist() == list(range(30, 50))
    before = all_refined_alone(refiner, vectors[:30])
    alive = np.setdiff1d(np.arange(50), [4, 9])
    places = [np.flatnonzero(alive == row)[0] for row in range(30, 50)]
    after = np.stack([refined_alone(refiner, vectors[alive[p]], np.delete(vectors[alive], p, axis=0)) for p in places])
    gallery, queries = np.concatenate([before, after])[alive], unit(6, seed=1)
    refined = np.stack([refined_alone(refiner, query, vectors[alive]) for query in queries])
    check_neighbors(index.search(queries, 9, refiner), refined, gallery, alive)


@pytest.mark.parametrize("neighbors", [0, 1, 4])
def test_fewer_images_than_the_refiner_takes(neighbors) -> None:
    refiner, vectors = made(neighbors), unit(9)
    index = Index.build(vectors[:1], table(1), refiner=refiner)
    gallery = vectors[:1]  # nobody to look at
    queries = unit(2, seed=1)
    refined = np.stack([refined_alone(refiner, query, vectors[:1]) for query in queries])
    check_neighbors(index.search(queries, 1, refiner), refined, gallery, np.arange(1))
    assert index.search(vectors[:1], 1, refiner, query_ids=[0]).scores[0, 0] == pytest.approx(1)
    both = index.search(vectors[[0, 5]], 1, refiner, query_ids=[0, -1])  # one has nobody to look at, the other one
    assert both.scores[:, 0] == pytest.approx(
        [1, refined_alone(refiner, vectors[5], vectors[:1]) @ gallery[0]], abs=2e-6
    )
    index.delete([0])
    refused_call("the index is empty", index.search, queries, 1, refiner)
    index.add(vectors[1:2], table(1, 1), refiner)
    index.add(vectors[2:4], table(2, 2), refiner)
    gallery = np.stack([vectors[1], *(refined_alone(refiner, vectors[i], vectors[[1, 5 - i]]) for i in (2, 3))])
    refined = np.stack([refined_alone(refiner, query, vectors[1:4]) for query in queries])
    check_neighbors(index.search(queries, 3, refiner), refined, gallery, np.arange(1, 4))


def test_ivfpq_keeps_unrefined_vectors(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(faiss_engine, "IVFPQ_MIN_VECTORS", 1000)
    refiner, vectors = made(), unit(1000)
    index = Index.build(vectors, table(1000), "ivfpq", refiner=refiner)
    assert (index.kind, index.state.committed.context.engine.kind) == ("ivfpq", "exact")
    index.delete(np.arange(500))
    index.save(tmp_path)
    index = Index.load(tmp_path)
    queries = unit(20, seed=1)
    refined = np.stack([refined_alone(refiner, query, vectors[500:]) for query in queries])
    engine, ids = index.state.committed.engine, index.metadata.ids  # the same codes, asked with what was refined
    plain = engine.search(UnitVectors(refined, "query"), 5, ids)
    np.testing.assert_allclose(index.search(queries, 5, refiner).scores, plain.scores, atol=1e-5)
    monkeypatch.setattr(faiss_engine, "MAX_EXACT", 999)
    many = UnitVectors(vectors, "vector")
    assert index_state.RefinerContext.create("ivfpq", many, refiner).engine.kind == "hnsw"


@pytest.mark.parametrize("kind", ["exact", "hnsw"])
def test_save_and_load(kind, tmp_path) -> None:
    refiner, vectors = made(model="abc"), unit(30)
    index = Index.build(vectors, table(30), kind, "abc", refiner)
    index.delete([1])
    index.save(tmp_path)
    loaded = Index.load(tmp_path)
    assert loaded.describe() == index.describe()
    assert loaded.describe()["refiner_fingerprint"] == loaded.refiner_fingerprint == refiner.fingerprint()
    for each in (index, loaded):
        each.add(unit(5, seed=2), table(5, 30), refiner)
    mine, theirs = (each.search(unit(6, seed=1), 8, refiner) for each in (index, loaded))
    np.testing.assert_array_equal(mine.ids, theirs.ids)
    np.testing.assert_array_equal(mine.scores, theirs.scores)
    plain = Index.build(vectors, table(30), kind)
    plain.save(tmp_path)
    assert Index.load(tmp_path).describe()["refiner_fingerprint"] is None
    assert not list(tmp_path.glob("context-*"))


def test_interrupted_adding_changes_nothing(monkeypatch, tmp_path) -> None:
    refiner, vectors = made(), unit(40)
    index = Index.build(vectors[:30], table(30), refiner=refiner)
    before = index.search(unit(5, seed=1), 30, refiner)

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ContextRefiner, "forward", interrupt)
        with pytest.raises(KeyboardInterrupt):
            index.add(vectors[30:35], table(5, 30), refiner)
    index.save(tmp_path)
    for each in (index, Index.load(tmp_path)):
        after = each.search(unit(5, seed=1), 30, refiner)
        np.testing.assert_array_equal(before.ids, after.ids)
        assert each.add(vectors[35:], table(5, 35), refiner).tolist() == [30, 31, 32, 33, 34]
        own = each.search(vectors[35:], 1, refiner, query_ids=np.arange(30, 35))
        assert own.ids.ravel().tolist() == [30, 31, 32, 33, 34]
        assert own.scores.ravel() == pytest.approx(np.ones(5), abs=2e-6)


def test_wrong_refiners_are_refused(tmp_path) -> None:
    refiner, other, vectors = made(), made(seed=1), unit(20)
    refined, plain = Index.build(vectors, table(20), refiner=refiner), Index.build(vectors, table(20))
    mine, theirs = refiner.fingerprint(), other.fingerprint()
    cases = [
        (refined, None, f"holds embeddings refined by {mine}; give that refiner"),
        (refined, other, f"was built with the refiner {mine}, not with {theirs}; use that refiner, or build"),
        (plain, refiner, "was built without a refiner; leave it out, or build the index again with it"),
    ]
    for index, given, message in cases:
        for asked in (
            lambda index=index, given=given: index.search(vectors, 1, given),
            lambda index=index, given=given: index.add(vectors, table(20), given),
            lambda index=index, given=given: search_images(index, vectors, table(20), 1, refiner=given),
        ):
            refused_call(message, asked)
        assert len(index) == 20
    refined.search(vectors, 1, refiner)
    with pytest.raises(InputError, match="not with"):  # also after the right one was seen
        refined.search(vectors, 1, other)
    with pytest.raises(InputError, match="embeddings have 3 dimensions, the refiner is for 8"):
        Index.build(np.ones((4, 3)), table(4), refiner=refiner)
    refused_call(
        "of the model abc, not of xyz", lambda: Index.build(vectors, table(20), "auto", "xyz", made(model="abc"))
    )


def test_unknown_query_ids_are_refused() -> None:
    refiner, vectors = made(), unit(20)
    index = Index.build(vectors, table(20), refiner=refiner)
    index.delete([3])
    for wrong in (3, 20):
        refused_call(f"the index has no id {wrong}", index.search, vectors[:2], 1, refiner, query_ids=[0, wrong])
    with pytest.raises(InputError, match=r"query_ids are int64 \[1\]; give an integer id for each of the 2 queries"):
        index.search(vectors[:2], 1, refiner, query_ids=[0])
    with pytest.raises(InputError, match="this index is not refined"):
        Index.build(vectors, table(20)).search(vectors[:2], 1, query_ids=[0, 1])
