from __future__ import annotations

import json
import subprocess
import sys

import faiss
import numpy as np
import pandas as pd
import pytest

from vicinal.data.table import Table
from vicinal.errors import InputError
from vicinal.retrieval import structure as structure_module
from vicinal.retrieval import top_k
from vicinal.retrieval.index import Index
from vicinal.retrieval.storage import save_files
from vicinal.retrieval.structure import Structure


def unit(rows: int, dim: int = 8, seed: int = 0) -> np.ndarray:
    """Points near a plane of few dimensions, as embeddings are."""
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((rows, 5)) @ np.random.default_rng(99).standard_normal((5, dim))
    vectors += 0.1 * rng.standard_normal((rows, dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def table(rows: int, start: int = 0) -> Table:
    numbers = range(start, start + rows)
    return Table(pd.DataFrame({"path": [f"/{n}.png" for n in numbers], "label": [f"class {n % 7}" for n in numbers]}))


def recall(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found.tolist(), wanted.tolist(), strict=True)]))


@pytest.fixture(scope="module")
def many() -> np.ndarray:
    return unit(3000)


@pytest.fixture(scope="module")
def ivfpq(many) -> bytes:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structure_module, "IVFPQ_LEAST", 3000)
        return Index.build(many, table(len(many)), "ivfpq")._structure.to_bytes()


def build(kind: str, many: np.ndarray, ivfpq: bytes) -> Index:
    if kind == "ivfpq":  # training takes a while: once is enough
        items = table(len(many)).frame
        items.insert(0, "id", np.arange(len(many)))
        return Index(Structure.from_bytes(ivfpq), items)
    return Index.build(many[:2000], table(2000), kind)


def test_exact_equals_top_k() -> None:
    vectors = unit(300)
    index = Index.build(vectors, table(300))
    assert (index.kind, len(index), index.dim) == ("exact", 300, 8)
    found, wanted = index.search(vectors[:20] * 3, 12), top_k(vectors[:20], vectors, 12)
    np.testing.assert_array_equal(found.ids, wanted.indices)
    np.testing.assert_allclose(found.scores, wanted.scores, atol=1e-6)
    assert (found.scores.dtype, found.ids.dtype) == (np.float32, np.int64)


def test_other_libraries_may_patch_faiss() -> None:
    script = (
        "import faiss.contrib.torch_utils, numpy as np, pandas as pd\n"
        "from vicinal.data.table import Table\nfrom vicinal.retrieval.index import Index\n"
        "index = Index.build(np.eye(3), Table(pd.DataFrame({'label': [1, 2, 3]})))\n"
        "index.delete([0])\nassert index.search(np.eye(3)[1:], 2).ids.tolist() == [[1, 2], [2, 1]]\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_equal_scores_come_in_order_of_ids() -> None:
    index = Index.build(np.ones((9, 3)), table(9))
    assert index.search(np.ones((2, 3)), 9).ids.tolist() == [list(range(9))] * 2


def test_auto_takes_hnsw_above_a_size(monkeypatch) -> None:
    monkeypatch.setattr(structure_module, "EXACT_UP_TO", 100)
    assert Index.build(unit(100), table(100)).kind == "exact"
    assert Index.build(unit(101), table(101)).kind == "hnsw"


@pytest.mark.parametrize(("kind", "least"), [("hnsw", 0.98), ("ivfpq", 0.5)])
def test_approximate_kinds_find_most(kind, least, many, ivfpq) -> None:
    index = build(kind, many, ivfpq)
    queries = unit(100, seed=5)
    found = index.search(queries, 10)
    exact = top_k(queries, many[: len(index)], 10)
    assert recall(found.ids, exact.indices) >= least
    assert (np.diff(found.scores, axis=1) <= 0).all()
    assert np.abs(found.scores - exact.scores).max() < 0.15


@pytest.mark.parametrize("kind", ["exact", "hnsw", "ivfpq"])
def test_delete_and_add(kind, many, ivfpq) -> None:
    index = build(kind, many, ivfpq)
    size = len(index)
    gone = np.arange(0, size, 2)
    index.delete(gone)
    assert len(index) == size - len(gone)
    queries = many[:50]
    found = index.search(queries, 10).ids
    assert (found % 2 == 1).all()
    extra = unit(30, seed=8)
    ids = index.add(extra, table(30, start=size))
    assert ids.tolist() == list(range(size, size + 30))
    found = index.search(extra, 20).ids
    assert np.mean((found == ids[:, None]).any(axis=1)) >= 0.9
    assert index.lookup(ids[[3, 1]])["path"].tolist() == [f"/{size + 3}.png", f"/{size + 1}.png"]
    index.delete(ids)
    with pytest.raises(InputError, match=f"no id {ids[0]}"):
        index.delete(ids[:1])
    assert index.add(extra[:1], table(1)).tolist() == [size + 30]  # ids are never given twice


@pytest.mark.parametrize("kind", ["exact", "hnsw", "ivfpq"])
def test_whole_index_can_be_asked_for(kind, many, ivfpq) -> None:
    index = build(kind, many, ivfpq)
    index.delete(index.items["id"][5:-5])
    found = index.search(many[:3], 10)
    assert sorted(found.ids[0].tolist()) == index.items["id"].tolist()
    assert np.isfinite(found.scores).all()
    with pytest.raises(InputError, match="k = 11 is outside of what an index of 10 images can give; use 1 to 10"):
        index.search(many[:3], 11)


@pytest.mark.parametrize("kind", ["exact", "hnsw", "ivfpq"])
def test_save_and_load(kind, many, ivfpq, tmp_path) -> None:
    index = build(kind, many, ivfpq)
    index.model_fingerprint = "abc"
    index.delete([0, 3])
    index.save(tmp_path / "index")
    loaded = Index.load(tmp_path / "index")
    pd.testing.assert_frame_equal(loaded.items, index.items)
    assert (loaded.kind, loaded.model_fingerprint, len(loaded)) == (kind, "abc", len(index))
    mine, theirs = index.search(many[:20], 7), loaded.search(many[:20], 7)
    np.testing.assert_array_equal(mine.ids, theirs.ids)
    np.testing.assert_array_equal(mine.scores, theirs.scores)
    assert loaded.add(unit(1), table(1)).tolist() == index.add(unit(1), table(1)).tolist()


def test_every_image_can_be_deleted_and_the_index_goes_on(tmp_path) -> None:
    index = Index.build(unit(3), table(3))
    index.delete([2, 0, 1])
    with pytest.raises(InputError, match="the index is empty"):
        index.search(unit(1), 1)
    index.save(tmp_path)
    index = Index.load(tmp_path)
    assert index.add(unit(2), table(2)).tolist() == [3, 4]
    index.save(tmp_path)
    assert Index.load(tmp_path).items["label"].tolist() == ["class 0", "class 1"]


def test_columns_of_added_tables(tmp_path) -> None:
    index = Index.build(unit(3), table(3))
    index.add(unit(2), Table(pd.DataFrame({"path": ["/x.png", "/y.png"], "camera": [1, 2]})))
    index.save(tmp_path)
    items = Index.load(tmp_path).items
    assert items["label"].isna().tolist() == [False, False, False, True, True]
    with pytest.raises(InputError, match="column 'camera' is boolean in the new rows, integer in the index"):
        index.add(unit(1), Table(pd.DataFrame({"camera": [True]})))
    assert len(index) == 5


@pytest.mark.parametrize("values", [[1, 2**60 + 1], [True, False], ["a", "b"], [0.5, 1.0]])
@pytest.mark.parametrize("lacking_first", [False, True])
def test_values_stay_what_they_are_beside_rows_without_them(values, lacking_first, tmp_path) -> None:
    parts = [Table(pd.DataFrame({"extra": values})), Table(pd.DataFrame({"other": [7, 8]}))]
    first, second = reversed(parts) if lacking_first else parts
    index = Index.build(unit(2), first)
    index.add(unit(2), second)
    index.add(unit(2), Table(pd.DataFrame(index=range(2))))
    index.add(unit(2), parts[0])
    index.save(tmp_path)
    for items in (index.items, Index.load(tmp_path).items):
        known = items["extra"].dropna().tolist()
        assert known == values * 2
        assert {type(value) for value in known} == {type(values[0])}
        assert items["extra"].isna().sum() == 4
        assert items["id"].dtype == np.int64


def test_integers_and_text_become_text(tmp_path) -> None:
    index = Index.build(unit(2), Table(pd.DataFrame({"label": [5, 7]})))
    index.add(unit(1), Table(pd.DataFrame({"path": ["/x.png"]})))
    index.add(unit(2), Table(pd.DataFrame({"label": ["5", "cow"]})))
    index.add(unit(1), Table(pd.DataFrame({"label": [9]})))
    index.save(tmp_path)
    for items in (index.items, Index.load(tmp_path).items):
        assert items["label"].dropna().tolist() == ["5", "7", "5", "cow", "9"]
        assert items["label"].isna().tolist() == [False, False, True, False, False, False]


@pytest.mark.parametrize("empty_first", [False, True])
@pytest.mark.parametrize("values", [[1], ["a"], [True], [0.5]])
def test_column_of_missing_values_goes_with_every_kind(values, empty_first, tmp_path) -> None:
    parts = [Table(pd.DataFrame({"extra": [np.nan]})), Table(pd.DataFrame({"extra": values}))]
    first, second = parts if empty_first else reversed(parts)
    index = Index.build(unit(1), first)
    index.add(unit(1), second)
    index.save(tmp_path)
    assert Index.load(tmp_path).items["extra"].dropna().tolist() == values


@pytest.mark.parametrize(
    ("old", "new"), [([True], ["a"]), (["a"], [True]), ([1], [True]), ([0.5], ["a"]), (["a"], [pd.Timestamp(0)])]
)
def test_columns_of_other_kinds_are_refused(old, new) -> None:
    index = Index.build(unit(1), Table(pd.DataFrame({"extra": old})))
    with pytest.raises(InputError, match=r"column 'extra' is \w+ in the new rows, \w+ in the index; it must be alike"):
        index.add(unit(1), Table(pd.DataFrame({"extra": new})))
    assert len(index) == 1
    assert index.add(unit(1), Table(pd.DataFrame({"extra": old}))).tolist() == [1]


def test_own_ids_of_a_table_are_kept(tmp_path) -> None:
    index = Index.build(unit(2), Table(pd.DataFrame({"id": ["p7", "p9"], "label": ["a", "b"]})))
    index.add(unit(1), Table(pd.DataFrame({"id": ["p8"], "label": ["c"]})))
    index.save(tmp_path)
    items = Index.load(tmp_path).items
    assert items["id"].tolist() == [0, 1, 2]
    assert items["id_of_table"].tolist() == ["p7", "p9", "p8"]
    with pytest.raises(InputError, match="both columns 'id' and 'id_of_table'"):
        index.add(unit(3), Table(items))


def test_table_without_columns() -> None:
    index = Index.build(unit(3), Table(pd.DataFrame(index=range(3))))
    assert index.items.columns.tolist() == ["id"]
    assert index.lookup(index.search(unit(3), 1).ids)["id"].tolist() == [0, 1, 2]


def test_bad_input() -> None:
    vectors = unit(20)
    index = Index.build(vectors, table(20))
    broken = vectors.copy()
    broken[11, 2] = np.inf
    with pytest.raises(InputError, match="vector 11 holds NaN"):
        Index.build(broken, table(20))
    with pytest.raises(InputError, match="vector 11 holds NaN"):
        index.add(broken, table(20))
    with pytest.raises(InputError, match="query 11 holds NaN"):
        index.search(broken, 1)
    with pytest.raises(InputError, match="vectors have 3 dimensions, the index has 8"):
        index.search(np.ones((1, 3)), 1)
    with pytest.raises(InputError, match="vectors have 3 dimensions, the index has 8"):
        index.add(np.ones((1, 3)), table(1))
    with pytest.raises(InputError, match="20 vectors, but a table of 19 rows"):
        Index.build(vectors, table(19))
    with pytest.raises(InputError, match="no vectors to index"):
        Index.build(vectors[:0], table(20).take([]))
    with pytest.raises(InputError, match="needs 9,984 vectors to train on, got 20"):
        Index.build(vectors, table(20), "ivfpq")
    with pytest.raises(InputError, match="unknown kind of index 'lsh'"):
        Index.build(vectors, table(20), "lsh")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="k = 0"):
        index.search(vectors, 0)
    with pytest.raises(InputError, match="no id -1"):
        index.delete([3, -1])
    with pytest.raises(InputError, match="no id 20"):
        index.lookup([20])
    assert len(index) == 20


def test_folder_that_contradicts_itself_is_damaged(tmp_path) -> None:
    index = Index.build(unit(4), table(4))
    index.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    facts = {name: config[name] for name in ("kind", "dim", "size", "added", "model_fingerprint")}
    data, items = index._structure.to_bytes(), index.items
    save_files(tmp_path, facts, data, items)
    assert len(Index.load(tmp_path)) == 4
    for wrong in (
        ({**facts, "dim": 7}, data, items),
        ({**facts, "kind": "hnsw"}, data, items),
        ({**facts, "kind": "lsh"}, data, items),
        ({**facts, "kind": ["exact"]}, data, items),
        ({**facts, "added": 5}, data, items),
        ({"kind": "exact"}, data, items),
        (facts, data[:-7], items),
        (facts, b"not faiss", items),
        (facts, faiss.serialize_index(faiss.IndexLSH(8, 16)).tobytes(), items),
        (facts, data, items.iloc[:3]),
        (facts, data, items.assign(id=[0, 1, 2, 4])),
        (facts, data, items.assign(id=[0, 2, 1, 3])),
        (facts, data, items.drop(columns="id")),
    ):
        save_files(tmp_path, *wrong)
        with pytest.raises(InputError, match="the index is damaged; build it again"):
            Index.load(tmp_path)
