"""What an index does is the same wherever it is kept."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.data.condition_cases import CASES, FRAME, OF_COLUMNS, WRONG
from tests.refusals import refused_call
from tests.retrieval.remote.conftest import Backend
from vicinal import Index, Table
from vicinal.data import matching_rows
from vicinal.retrieval import identify, match_images, search_images, top_k
from vicinal.retrieval.calibration import example_calibration
from vicinal.retrieval.search import plain_records
from vicinal.utils.errors import InputError
from vicinal.workflows.embedded_table import EmbeddedTable
from vicinal.workflows.sync import sync_index, with_file_facts

HOSTILE = [
    "it's", 'say "hi"', "back\\slash", "100%", "a_b", "new\nline", "tab\t", "ü€😀", "{x}", "' or 1=1 --",
    '" or id > 0 or "', "%s", "]", "", "\x07", "\\", "\\%", "a\\_b", "axb", "'; DROP TABLE x; --", "$1", "null",
]  # fmt: skip


def vectors(rows: int, dim: int = 8, seed: int = 0) -> np.ndarray:
    found = np.random.default_rng(seed).standard_normal((rows, dim)).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def table(rows: int, **columns: Any) -> Table:
    paths = [f"/photos/{n % 3}/{n}.png" for n in range(rows)]
    return Table(pd.DataFrame({"path": paths, "label": [f"class {n % 5}" for n in range(rows)], **columns}))


def paths(index: Any, ids: np.ndarray) -> list[str]:
    return index.lookup(ids)["path"].tolist()


def test_search_finds_the_nearest_with_their_scores(backend: Backend) -> None:
    gallery, queries = vectors(300), vectors(7, seed=1)
    index = backend.build(3 * gallery, table(300), model_fingerprint="ab", made_with={"model": "run"})
    expected, found = top_k(queries, gallery, 5), Index.load(backend.place).search(queries, 5)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)
    assert [paths(index, ids) for ids in found.ids] == [[table(300).paths[row] for row in ids] for ids in expected.ids]
    facts = index.describe()
    assert (len(index), index.dim, facts["images"], facts["dimensions"]) == (300, 8, 300, 8)
    assert (index.model_fingerprint, index.made_with, facts["kind"]) == ("ab", {"model": "run"}, index.kind)


def test_columns_come_back_whatever_their_names_and_values(backend: Backend) -> None:
    rows = len(HOSTILE)
    columns: dict[str, Any] = {
        "text": HOSTILE,
        "some": [None if n % 2 else f"x{n}" for n in range(rows)],
        "count": pd.array([None if n % 4 == 0 else 2**53 + n for n in range(rows)], dtype="Int64"),
        "price": [np.nan if n % 3 == 0 else n / 3 for n in range(rows)],
        "flag": [n % 2 == 0 for n in range(rows)],
        "id": range(rows),
        'odd "name"] or \'1': range(rows),
        "Preis in €": range(rows),
        "x" * 100: range(rows),
        "x_a": range(rows),
    }
    if backend.name != "faiss":  # whose files lose it
        columns["embedding"] = ["e"] * rows
    given = table(rows, **columns)
    index = backend.build(vectors(rows), given)
    expected = {each["path"]: each for each in plain_records(given.frame.rename(columns={"id": "id_of_table"}))}
    for found in (
        pd.concat(list(index.frames())),
        index.contents()[1],
        index.lookup(index.where("count > 0 or 1 > count or count is None")),
    ):
        records = plain_records(found)
        assert {each["path"]: {**each, "id": None} for each in records} == {
            path: {**each, "id": None} for path, each in expected.items()
        }
    assert set(index.columns) == {"id", "id_of_table", *given.frame.columns}


def test_conditions_select_the_same_rows_everywhere(backend: Backend) -> None:
    given = Table(FRAME.assign(path=[f"/{row}.png" for row in range(len(FRAME))]))
    index = backend.build(vectors(len(FRAME)), given)
    for condition, rows in {**CASES, **({} if backend.name == "milvus" else OF_COLUMNS)}.items():
        assert sorted(paths(index, index.where(condition))) == [f"/{row}.png" for row in rows], condition
        assert index.count(index.select(condition)) == len(rows), condition
    for condition, message in WRONG.items():
        refused_call(message, index.where, condition)


def test_any_text_is_found(backend: Backend) -> None:
    given = table(len(HOSTILE), hostile=HOSTILE)
    index = backend.build(vectors(len(HOSTILE)), given)
    for text in HOSTILE:
        cases = {f"hostile == {text!r}": [text == each for each in HOSTILE]}
        contained = f"{text!r} in hostile"
        if backend.name == "milvus" and ("%" in text or "_" in text):  # Milvus Lite has no escapes
            refused_call("Milvus Lite cannot find", index.where, contained)
        else:
            cases[contained] = [text in each for each in HOSTILE]
        for condition, rows in cases.items():
            assert sorted(paths(index, index.where(condition))) == sorted(given.take(np.flatnonzero(rows)).paths)


def test_search_among_some(backend: Backend) -> None:
    gallery, given = vectors(120), table(120)
    index = backend.build(gallery, given)
    rows = np.flatnonzero(matching_rows(given.frame, "label == 'class 2'"))
    expected = top_k(gallery[:3], gallery[rows], 4)
    found = index.search(gallery[:3], 4, among=index.select("label == 'class 2'"))
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)
    ids = index.ids_by_key(given.image_keys[:2])
    assert set(index.search(gallery[:1], 2, among=ids).ids[0]) == set(ids)
    with pytest.raises(InputError, match="k = 25 is invalid in 24 images to search among; use 1 to 24"):
        index.search(gallery[:1], 25, among=index.select("label == 'class 2'"))
    refused_call("k = 121 is invalid in an index of 120 images; use 1 to 120", index.search, gallery[:1], 121)


def test_the_same_images_twice_are_there_once(backend: Backend) -> None:
    gallery, given = vectors(20), table(20)
    index = backend.build(gallery, given)
    ids = index.ids_by_key(given.image_keys)
    assert len(set(ids.tolist())) == 20
    assert index.upsert(gallery[:5], given.take(np.arange(5))).tolist() == ids[:5].tolist()
    changed = given.take(np.array([3, 4, 3]))
    changed = Table(changed.frame.assign(label=["old", "new 4", "new 3"], price=[1, 2, 3]))
    index.upsert(vectors(3, seed=5), changed)
    assert len(index) == 20
    found = index.search(vectors(3, seed=5)[1:], 1).ids.ravel()
    assert index.lookup(found)[["path", "label", "price"]].to_numpy().tolist() == [
        ["/photos/1/4.png", "new 4", 2], ["/photos/0/3.png", "new 3", 3],
    ]  # fmt: skip
    new = Table(pd.DataFrame({"path": ["/new.png", "/photos/0/0.png"], "label": [1, 2]}))
    added = index.upsert(vectors(2, seed=6), new)
    assert len(index) == 21
    assert index.lookup(added)["label"].tolist() == ["1", "2"]  # beside texts, numbers are texts
    with pytest.raises(InputError, match="column 'price' is boolean in the new rows, integer in the index"):
        index.upsert(gallery[:1], Table(pd.DataFrame({"path": ["/other.png"], "price": [True]})))
    assert len(index) == 21


def test_numbers_become_texts_where_texts_are_added(backend: Backend) -> None:
    index = backend.build(vectors(4), Table(pd.DataFrame({"path": ["/a", "/b", "/c", "/d"], "label": [1, 2, 3, 4]})))
    index.add(vectors(1, seed=2), Table(pd.DataFrame({"path": ["/e"], "label": ["cup"]})))
    assert sorted(paths(index, index.where("label == '2' or label == 'cup'"))) == ["/b", "/e"]


def test_images_without_a_path(backend: Backend) -> None:
    index = backend.build(np.repeat(vectors(2), 2, axis=0), Table(pd.DataFrame({"label": ["a", "a", "b", "b"]})))
    assert len(index) == 4
    assert sorted(index.lookup(index.search(vectors(2)[:1], 4).ids[0])["label"]) == ["a", "a", "b", "b"]
    some = index.where("label == 'b'")
    index.update(some, Table(pd.DataFrame({"label": ["c", "d"]})))
    assert index.lookup(some)["label"].tolist() == ["c", "d"]


def test_deleted_images_are_not_found(backend: Backend) -> None:
    gallery, given = vectors(30), table(30)
    index = backend.build(gallery, given)
    in_folder = index.ids_at("/photos/1")
    assert len(in_folder) == 10
    assert len(index.ids_at("/photos/1/4.png")) == 1
    assert not len(index.ids_at("/photos/1%"))
    index.delete(in_folder)
    assert len(index) == 20
    found = index.search(gallery, 20).ids
    assert not np.isin(found, in_folder).any()
    refused_call("the index has no id", index.lookup, in_folder[:1])
    assert not len(index.lookup(in_folder, skip_unknown=True))
    assert index.ids_by_key(given.image_keys[:2]).tolist() == [index.ids_at(given.paths[0])[0], -1]


def test_columns_are_replaced_and_vectors_stay(backend: Backend) -> None:
    gallery, given = vectors(10), table(10)
    index = backend.build(gallery, given)
    ids = index.ids_by_key(given.image_keys[:2])
    index.update(ids, Table(given.take(np.array([0, 1])).frame.assign(label=["x", "y"], stock=[3, 4])))
    assert index.lookup(index.search(gallery[:2], 1).ids.ravel())["label"].tolist() == ["x", "y"]
    assert index.count(index.select("stock > 3")) == 1
    refused_call("2 ids, but a table of 1 rows", index.update, ids, given.take(np.array([0])))


@pytest.mark.parametrize("large", [2**53 + 1, -(2**63)])
def test_integers_that_would_be_rounded_among_fractions_are_refused(backend: Backend, large: int) -> None:
    index = backend.build(vectors(3), table(3, ean=[large, 3, 4], price=[0.5, 1.0, 2.0]))
    for column, value in (("ean", 1.5), ("price", large)):
        new = Table(table(4).take([3]).frame.assign(**{column: [value]}))
        with pytest.raises(InputError, match=f"column '{column}' mixes integers beyond .* rounded; make it text"):
            index.upsert(vectors(4)[3:], new)
    assert len(index) == 3
    assert sorted(index.lookup(index.ids_by_key(table(3).image_keys))["ean"].tolist()) == sorted([large, 3, 4])
    index.upsert(vectors(4)[3:], Table(table(4).take([3]).frame.assign(ean=[5], price=[7])))
    assert index.count(index.select("ean > 4 and price == 7")) == 1


def test_bad_vectors_are_refused_and_nothing_is_written(backend: Backend) -> None:
    index = backend.build(vectors(5), table(5))
    refused_call("vectors have 9 dimensions, the index has 8", index.upsert, vectors(1, dim=9), table(1))
    refused_call("NaN or infinity", index.upsert, np.full((1, 8), np.nan), table(1))
    refused_call("2 vectors, but a table of 1 rows", index.upsert, vectors(2), table(1))
    refused_call("query 0 holds NaN", index.search, np.full((1, 8), np.inf), 1)
    refused_call("use 1 to", index.search, vectors(1), 0)
    assert len(index) == 5


def test_results_for_people(backend: Backend) -> None:
    gallery, given = vectors(40), table(40, price=range(40))
    index = backend.build(gallery, given)
    queries = given.take(np.arange(3))
    found = search_images(index, gallery[:3], queries, 4, exclude_self=True, where="price < 30", group_by="label")
    for number, result in enumerate(found):
        assert len({match["label"] for match in result.matches}) == len(result.matches) == 4
        assert given.paths[number] not in [match["path"] for match in result.matches]
        assert all(match["price"] < 30 for match in result.matches)
    with pytest.raises(InputError, match="no image of the index matches price > 99"):
        search_images(index, gallery[:1], queries.take(np.array([0])), 1, where="price > 99")
    decided = match_images(index, gallery[:1], queries.take(np.array([0])), 3, min_score=0.99)
    assert decided[0].decision.is_match
    assert len(decided[0].matches) == 1


def test_what_an_index_says_about_itself_is_kept(backend: Backend) -> None:
    backend.build(vectors(5), table(5), model_fingerprint="ab")
    with Index.open(backend.place) as index:
        index.calibration = example_calibration()
        index.root, index.unsure = "/photos", ["/photos/b.png", "/photos/a.png"]
    index = Index.load(backend.place)
    assert (index.calibration, index.root) == (example_calibration(), "/photos")
    assert index.unsure == ["/photos/a.png", "/photos/b.png"]
    found = identify(index, vectors(5), Table(pd.DataFrame(index=range(5))), min_score=0.99)
    assert found["identity"].tolist() == table(5).frame["label"].tolist()
    refused_call("the index was built with embeddings of the model ab", index.check_model, "cd")


def test_moved_images(backend: Backend, tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name / "a").mkdir(parents=True)
    (tmp_path / "new" / "a" / "1.png").touch()
    given = Table(pd.DataFrame({"path": [str(tmp_path / "old/a/1.png"), "/elsewhere.png"]}))
    backend.build(vectors(2), given)
    with Index.open(backend.place) as index:
        index.move(tmp_path / "new")
    index = Index.load(backend.place)
    assert paths(index, index.search(vectors(2), 1).ids.ravel()) == [str(tmp_path / "new/a/1.png"), "/elsewhere.png"]
    assert len(index) == 2


def test_sync_adds_replaces_moves_and_drops(backend: Backend, tmp_path: Path) -> None:
    folder, embedded = tmp_path / "photos", []
    folder.mkdir()

    def embed(rows: Table) -> EmbeddedTable:
        embedded.extend(rows.paths)
        seeds = [sum(Path(path).read_bytes()) for path in rows.paths]
        return EmbeddedTable(np.concatenate([vectors(1, seed=seed) for seed in seeds]), rows, "model")

    def sync() -> str:
        embedded.clear()
        files = sorted(str(path) for path in folder.rglob("*.png"))
        listed = Table(pd.DataFrame({"path": files, "label": [Path(file).parent.name for file in files]}))
        return str(sync_index(
            backend.place, listed, embed, lambda rows: backend.build(rows.vectors, rows.table),
            lambda index, rows: index.upsert(rows.vectors, rows.table), below=folder, block_size=2,
        ))  # fmt: skip

    for name in ("a", "b", "c", "d", "e"):
        (folder / f"{name}.png").write_text(name)
    assert sync() == "5 new, 0 changed, 0 vanished, 0 as before"
    assert sync() == "0 new, 0 changed, 0 vanished, 5 as before"
    assert embedded == []
    (folder / "a.png").write_text("A")
    (folder / "b.png").rename(folder / "moved.png")
    (folder / "c.png").unlink()
    (folder / "sub").mkdir()
    (folder / "sub" / "f.png").write_text("f")
    assert sync() == "1 new, 1 changed, 1 vanished, 2 as before, 1 moved"
    assert sorted(embedded) == [str(folder / "a.png"), str(folder / "sub/f.png")]
    index = Index.load(backend.place)
    assert sorted(os.path.basename(path) for path in pd.concat(list(index.frames()))["path"]) == [
        "a.png", "d.png", "e.png", "f.png", "moved.png",
    ]  # fmt: skip
    assert paths(index, index.search(vectors(1, seed=ord("b")), 1).ids[0]) == [str(folder / "moved.png")]


def test_file_facts_are_no_columns_for_conditions(backend: Backend, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("a")
    given = with_file_facts(Table(pd.DataFrame({"path": [str(tmp_path / "a.png")], "label": ["x"]})))
    index = backend.build(vectors(1), given)
    refused_call("no column 'file_size'", index.where, "file_size > 0")
