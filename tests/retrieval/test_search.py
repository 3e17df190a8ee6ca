import json

import numpy as np
import pandas as pd
import pytest

from vicinal.data import Table
from vicinal.retrieval import ContextualReranking, Index, rerank, search_images
from vicinal.utils.errors import InputError

# The angle between two of them is the difference of their numbers, in tenths.
VECTORS = np.stack([np.cos(np.arange(5) / 10), np.sin(np.arange(5) / 10)], axis=1).astype(np.float32)
PATHS = [f"/{letter}.png" for letter in "abcde"]


def index(**columns: object) -> Index:
    return Index.build(VECTORS, Table(pd.DataFrame(columns, index=range(5))))


def nothing(rows: int) -> Table:
    return Table(pd.DataFrame(index=range(rows)))


def test_matches_have_path_and_label_if_there_are_any() -> None:
    queries = Table(pd.DataFrame({"path": ["/q.png", "/r.png"], "label": ["cat", "dog"], "camera": [1, 2]}))
    first, second = search_images(index(path=PATHS, label=list("vwxyz")), VECTORS[[0, 4]], queries, k=2)
    assert first.query == {"path": "/q.png", "label": "cat", "camera": 1}
    matches = [(match["id"], match["path"], match["label"]) for match in first.matches]
    assert matches == [(0, "/a.png", "v"), (1, "/b.png", "w")]
    assert [match["score"] for match in first.matches] == pytest.approx([1, np.cos(0.1)], abs=1e-6)
    assert (second.query["label"], [match["id"] for match in second.matches]) == ("dog", [4, 3])
    found = search_images(index(), VECTORS[:3], nothing(3), k=1)
    assert [each.query for each in found] == [{}, {}, {}]
    assert [each.matches[0].keys() for each in found] == [{"id", "score"}] * 3
    assert search_images(index(), VECTORS[:0], nothing(0), k=1) == []


def test_exclude_self_omits_the_query() -> None:
    table = Table(pd.DataFrame({"path": PATHS}))
    searched = index(path=PATHS)
    for k in (1, 3, 4):
        found = search_images(searched, VECTORS, table, k, exclude_self=True)
        assert [len(each.matches) for each in found] == [k] * 5
        for each in found:
            assert each.query["path"] not in [match["path"] for match in each.matches]
    assert [match["id"] for match in found[2].matches] == [1, 3, 0, 4]
    whole = search_images(searched, VECTORS, table, 5, exclude_self=True)
    assert [len(each.matches) for each in whole] == [4] * 5
    twice = index(path=["/a", "/a", "/a", "/b", "/c"])
    (found,) = search_images(twice, VECTORS[:1], Table(pd.DataFrame({"path": ["/a"]})), 1, exclude_self=True)
    assert [match["path"] for match in found.matches] in (["/b"], ["/c"])


def test_exclude_self_omits_nothing_for_queries_outside_of_the_index() -> None:
    stranger = Table(pd.DataFrame({"path": ["/other.png"]}))
    for table, searched in ((stranger, index(path=PATHS)), (nothing(1), index(path=PATHS)), (nothing(1), index())):
        (found,) = search_images(searched, VECTORS[:1], table, 5, exclude_self=True)
        assert [match["id"] for match in found.matches] == [0, 1, 2, 3, 4]


def test_result_is_ready_for_json() -> None:
    values = {"a": pd.Timestamp("2020-01-02"), "b": [1, 2], "c": b"owl", "d": {"a": 1}, "e": pd.Timedelta(1)}
    numbers = pd.Series([np.int64(5), np.int64(6), np.int64(7), None, np.int64(9)], dtype=object)
    searched = index(path=PATHS, number=numbers, **{name: [value] * 5 for name, value in values.items()})
    found = search_images(searched, VECTORS[:1], Table(pd.DataFrame({"label": np.array([5])})), k=5)
    loaded = json.loads(json.dumps([each.to_dict() for each in found]))
    assert loaded[0]["query"] == {"label": 5}
    assert [match.get("number") for match in loaded[0]["matches"]] == [5, 6, 7, None, 9]
    assert [match["id"] for match in loaded[0]["matches"]] == [0, 1, 2, 3, 4]
    for name, value in values.items():  # which JSON lacks
        assert loaded[0]["matches"][0][name] == str(value).removesuffix(" 00:00:00")


def test_further_columns_are_shown() -> None:
    boxes = {"x_1": [0, None], "y_1": [0, None], "x_2": [5, None], "y_2": [6.5, None]}
    frame = pd.DataFrame({"path": PATHS[:2], "label": ["cup", "mug"], "split": "test", "price": [12.5, None], **boxes})
    (found,) = search_images(Index.build(VECTORS[:2], Table(frame)), VECTORS[:1], nothing(1), k=2)
    assert found.matches[0]["price"] == 12.5
    assert found.matches[0]["box"] == [0, 0, 5, 6.5]
    assert not {"price", "box", "x_1"} & found.matches[1].keys()
    lines = str(found).splitlines()
    assert lines[1].endswith("cup  /a.png [0, 0, 5, 6.5]  (price 12.5)")
    assert lines[2].endswith("mug  /b.png")


def test_the_best_image_of_each_group() -> None:
    searched = index(path=PATHS, product=["a", "a", "b", None, "b"])
    (found,) = search_images(searched, VECTORS[:1], nothing(1), k=3, group_by="product")
    assert [match["id"] for match in found.matches] == [0, 2, 3]
    itself = Table(pd.DataFrame({"path": PATHS[:1]}))
    (found,) = search_images(searched, VECTORS[:1], itself, 3, True, group_by="product")
    assert [match["id"] for match in found.matches] == [1, 2, 3]
    with pytest.raises(InputError, match="no column 'brand' to group by; its columns are id, path, product"):
        search_images(searched, VECTORS[:1], nothing(1), k=3, group_by="brand")


def test_groups_larger_than_the_first_search() -> None:
    vectors = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    product = np.where(np.arange(200) < 3, np.arange(200), 9)
    searched = Index.build(vectors, Table(pd.DataFrame({"product": product})))
    (found,) = search_images(searched, vectors[:1], nothing(1), k=4, group_by="product")
    assert {match["product"] for match in found.matches} == {0, 1, 2, 9}


def test_reranked_matches_are_those_of_rerank() -> None:
    vectors = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    table = Table(pd.DataFrame({"path": [f"/{row}.png" for row in range(60)], "even": np.arange(60) % 2 == 0}))
    method = ContextualReranking(k=5)
    searched = Index.build(vectors, table)
    found = search_images(searched, vectors[:9], table.take(range(9)), 6, exclude_self=True, reranking=method)
    own = np.arange(9)
    expected = rerank(vectors[:9], vectors, 6, method, exclude_self=own)
    assert [[match["id"] for match in each.matches] for each in found] == expected.ids.tolist()
    plain = search_images(searched, vectors[:9], table.take(range(9)), 6, exclude_self=True)
    assert [each.matches for each in plain] != [each.matches for each in found]
    some = search_images(searched, vectors[:2], nothing(2), 6, where="even", reranking=method)
    expected = rerank(vectors[:2], vectors[::2], 6, method)
    assert [[match["id"] for match in each.matches] for each in some] == (2 * expected.ids).tolist()


def test_objects_of_one_picture_are_different_images() -> None:
    boxes = {"x_1": [0, 5], "y_1": [0, 0], "x_2": [5, 9], "y_2": [6, 6]}
    table = Table(pd.DataFrame({"path": ["/a.png"] * 2, **boxes}))
    found = search_images(Index.build(VECTORS[:2], table), VECTORS[:2], table, k=1, exclude_self=True)
    assert [each.matches[0]["id"] for each in found] == [1, 0]


def test_a_tables_own_columns_score_and_box_are_other_names() -> None:
    table = Table(pd.DataFrame({"path": ["a.png", "b.png"], "score": ["9", "8"], "box": ["crate", "crate"]}))
    (result, _) = search_images(Index.build(np.eye(2), table), np.eye(2, dtype=np.float32), table, 1)
    assert {"score_of_table": "9", "box_of_table": "crate"}.items() <= result.query.items()
    assert (result.matches[0]["score"], result.matches[0]["box_of_table"]) == (1.0, "crate")
    assert "box_of_table crate" in str(result)
