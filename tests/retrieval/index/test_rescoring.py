"""Indexes of codes keep their vectors in a file: what is in memory, what is written, and what is found."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.retrieval.index.test_index import recall, table, unit
from vicinal.data import Table
from vicinal.retrieval import Index, top_k

FLAT = ["sq8", "rabitq", "binary"]


def originals(folder: Path) -> Path:
    (path,) = folder.glob("originals-*.f16")
    return path


@pytest.mark.parametrize("kind", FLAT)
def test_only_codes_are_in_memory(kind: str, tmp_path: Path) -> None:
    vectors = unit(300)
    Index.build(vectors, table(300), kind).save(tmp_path)
    assert originals(tmp_path).stat().st_size == 300 * 8 * 2
    store = Index.load(tmp_path).state.committed.engine.base.store
    assert [type(block) for block in store._blocks] == [np.memmap]


def test_unchanged_vectors_are_not_written_again(tmp_path: Path) -> None:
    Index.build(unit(50), table(50), "sq8").save(tmp_path)
    before = originals(tmp_path).stat()
    with Index.open(tmp_path) as index:
        index.delete([3])
    after = originals(tmp_path).stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    with Index.open(tmp_path) as index:
        index.add(unit(2, seed=1), table(2))
    assert originals(tmp_path).stat().st_size == 50 * 8 * 2
    Index.load(tmp_path).state.fold()
    assert originals(tmp_path).stat().st_size == 52 * 8 * 2
    np.testing.assert_allclose(Index.load(tmp_path).vectors()[-2:], unit(2, seed=1), atol=5e-4)


def test_a_reader_goes_on_with_the_file_that_a_writer_replaced(tmp_path: Path) -> None:
    vectors = unit(60)
    Index.build(vectors, table(60), "binary").save(tmp_path / "index")
    reader = Index.load(tmp_path / "index")
    reader.state.follows = False
    Index.build(-vectors, table(60), "binary").save(tmp_path / "index")
    assert reader.search(vectors[:5], 1).ids.ravel().tolist() == [0, 1, 2, 3, 4]
    reader.save(tmp_path / "copy")
    np.testing.assert_array_equal(Index.load(tmp_path / "copy").vectors(), reader.vectors())


@pytest.mark.parametrize("kind", FLAT)
def test_more_candidates_find_more_until_all_is_exact(kind: str) -> None:
    vectors, queries = unit(400, dim=24), unit(30, dim=24, seed=3)
    exact, found = top_k(queries, vectors, 3), []
    for rescore in (1, 4, 100):
        index = Index.build(vectors, table(400), kind, rescore=rescore)
        found.append(recall(index.search(queries, 3).ids, exact.ids))
    assert found[0] <= found[1] <= found[2]
    assert found[2] > 0.98
    assert index.rescore == index.describe()["rescore"] == 100


@pytest.mark.parametrize("kind", FLAT)
def test_among_finds_only_these_and_few_are_the_first_of_more(kind: str) -> None:
    vectors = unit(400, dim=24)
    index, queries = Index.build(vectors, table(400), kind, rescore=2), unit(50, dim=24, seed=3)
    found = index.search(vectors[:9], 3, among=[5, 17, 140, 199])
    expected = top_k(vectors[:9], vectors[[5, 17, 140, 199]], 3)
    np.testing.assert_array_equal(found.ids, np.array([5, 17, 140, 199])[expected.ids])
    np.testing.assert_array_equal(index.search(queries, 1).ids, index.search(queries, 10).ids[:, :1])


def test_one_vector_is_enough_and_equal_ones_are_in_the_order_of_their_ids() -> None:
    for kind in ("exact", *FLAT):
        index = Index.build(np.ones((40, 5)), table(40), kind)  # so many that a sort which is not stable mixes them
        assert index.search(np.ones((2, 5)), 40).ids.tolist() == [list(range(40))] * 2, kind
        index = Index.build(unit(1), table(1), kind)
        assert index.add(unit(2, seed=1), table(2)).tolist() == [1, 2]
        assert index.search(unit(1), 3).ids[0, 0] == 0, kind


def test_bits_tell_vectors_apart_that_are_all_on_one_side() -> None:
    vectors = unit(100, dim=64) + 1  # all entries are above 0
    index = Index.build(vectors, table(100), "binary", rescore=0)
    assert index.search(vectors, 1).ids.ravel().tolist() == list(range(100))


def test_codes_without_vectors_are_small_and_approximate(tmp_path: Path) -> None:
    vectors = unit(500, dim=64)
    index = Index.build(vectors, Table(pd.DataFrame(index=range(500))), "binary", rescore=0)
    index.save(tmp_path)
    assert not list(tmp_path.glob("originals-*"))
    assert (index.rescore, "rescore" in index.describe()) == (0, False)
    loaded = Index.load(tmp_path)
    assert loaded.search(vectors[:20], 1).ids.ravel().tolist() == list(range(20))
    assert np.sum(loaded.vectors() * vectors, axis=1).mean() > 0.6
