"""An index of refined embeddings against a reference that sorts all similarities and refines one vector at a time."""

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
def test_added_images_are_refined_by_all_that_are_left_and_change_no_other(kind) -> None:
    refiner, vectors = made(), unit(50)
    index, queries = Index.build(vectors[:30], table(30), kind, refiner=refiner), vectors[:6] + 0.01
    index.delete(np.arange(10))  # among them what is nearest to the queries
    assert index.add(vectors[30:], table(20, 30), refiner).tolist() == list(range(30, 50))
    before, alive = all_refined_alone(refiner, vectors[:30])[10:], vectors[10:]
    after = np.stack([refined_alone(refiner, alive[row], np.delete(alive, row, axis=0)) for row in range(20, 40)])
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    refined = np.stack([refined_alone(refiner, query, alive) for query in queries])
    check_neighbors(index.search(queries, 9, refiner), refined, np.concatenate([before, after]), np.arange(10, 50))


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
    other = refined_alone(refiner, vectors[5], vectors[:1]) @ gallery[0]
    assert both.scores[:, 0] == pytest.approx([1, other], abs=2e-6)
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
    assert (index.kind, index.state.committed.context.engine.base.kind) == ("ivfpq", "exact")
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
    assert index_state.RefinerContext.create("ivfpq", many, refiner).engine.base.kind == "hnsw"


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


def test_wrong_refiners_are_refused() -> None:
    refiner, other, vectors = made(), made(seed=1), unit(20)
    refined, plain = Index.build(vectors, table(20), refiner=refiner), Index.build(vectors, table(20))
    mine, theirs = refiner.fingerprint(), other.fingerprint()
    refined.search(vectors, 1, refiner)  # another one is refused also after the right one was seen
    for index, given, message in (
        (refined, None, f"holds embeddings refined by {mine}; give that refiner"),
        (refined, other, f"was built with the refiner {mine}, not with {theirs}; use that refiner, or build"),
        (plain, refiner, "was built without a refiner; leave it out, or build the index again with it"),
    ):
        refused_call(message, index.search, vectors, 1, given)
        refused_call(message, index.add, vectors, table(20), given)
        refused_call(message, search_images, index, vectors, table(20), 1, refiner=given)
        assert len(index) == 20
    wrong = "embeddings have 3 dimensions, the refiner is for 8"
    refused_call(wrong, Index.build, np.ones((4, 3)), table(4), refiner=refiner)
    refused_call("of the model abc, not of xyz", Index.build, vectors, table(20), "auto", "xyz", made(model="abc"))


def test_unknown_query_ids_are_refused() -> None:
    refiner, vectors = made(), unit(20)
    index = Index.build(vectors, table(20), refiner=refiner)
    index.delete([3])
    for wrong in (3, 20):
        refused_call(f"the index has no id {wrong}", index.search, vectors[:2], 1, refiner, query_ids=[0, wrong])
    message = r"query_ids are int64 \[1\]; give an integer id for each of the 2 queries"
    refused_call(message, index.search, vectors[:2], 1, refiner, query_ids=[0])
    plain = Index.build(vectors, table(20))
    refused_call("this index is not refined", plain.search, vectors[:2], 1, query_ids=[0, 1])
