from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from vicinal.data.table import Table
from vicinal.retrieval import Index, search_images
from vicinal.utils.errors import InputError

# The angle between two of them is the difference of their numbers, in tenths.
VECTORS = np.stack([np.cos(np.arange(5) / 10), np.sin(np.arange(5) / 10)], axis=1).astype(np.float32)
PATHS = [f"/{letter}.png" for letter in "abcde"]


def index(**columns: object) -> Index:
    return Index.build(VECTORS, Table(pd.DataFrame(columns, index=range(5))))


def nothing(rows: int) -> Table:
    return Table(pd.DataFrame(index=range(rows)))


def test_matches_have_path_and_label() -> None:
    queries = Table(pd.DataFrame({"path": ["/q.png", "/r.png"], "label": ["cat", "dog"], "camera": [1, 2]}))
    first, second = search_images(index(path=PATHS, label=list("vwxyz")), VECTORS[[0, 4]], queries, k=2)
    assert first.query == {"path": "/q.png", "label": "cat"}
    assert [(match["id"], match["path"], match["label"]) for match in first.matches] == [
        (0, "/a.png", "v"),
        (1, "/b.png", "w"),
    ]
    assert [match["score"] for match in first.matches] == pytest.approx([1, np.cos(0.1)], abs=1e-6)
    assert (second.query["label"], [match["id"] for match in second.matches]) == ("dog", [4, 3])


def test_vectors_without_metadata() -> None:
    found = search_images(index(), VECTORS[:3], nothing(3), k=1)
    assert [each.query for each in found] == [{}, {}, {}]
    assert [each.matches[0].keys() for each in found] == [{"id", "score"}] * 3
    assert search_images(index(), VECTORS[:0], nothing(0), k=1) == []


def test_missing_values_are_omitted() -> None:
    searched = Index.build(VECTORS[:2], Table(pd.DataFrame({"label": [5, 6]})))
    searched.add(VECTORS[2:], Table(pd.DataFrame({"path": PATHS[2:]})))
    (found,) = search_images(searched, VECTORS[:1], Table(pd.DataFrame({"id": [17]})), k=3)
    assert found.query == {"id": 17}
    assert [match.keys() - {"id", "score"} for match in found.matches] == [{"label"}, {"label"}, {"path"}]
    assert [match.get("label") for match in found.matches] == [5, 6, None]


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


def test_exclude_self_omits_nothing_for_queries_outside_of_the_index() -> None:
    stranger = Table(pd.DataFrame({"path": ["/other.png"]}))
    for table, searched in ((stranger, index(path=PATHS)), (nothing(1), index(path=PATHS)), (nothing(1), index())):
        (found,) = search_images(searched, VECTORS[:1], table, 5, exclude_self=True)
        assert [match["id"] for match in found.matches] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("exclude_self", [False, True])
def test_k_larger_than_the_index(exclude_self: bool) -> None:
    with pytest.raises(InputError, match="k = 6 is impossible in an index of 5 images"):
        search_images(index(), VECTORS[:1], nothing(1), 6, exclude_self)


def test_printing() -> None:
    (found,) = search_images(index(path=PATHS, label=list("vwxyz")), VECTORS[:1], nothing(1), k=2)
    assert str(found) == "query\n   1  1.0000  v  /a.png\n   2  0.9950  w  /b.png"
    (found,) = search_images(index(), VECTORS[:1], Table(pd.DataFrame({"path": ["/q.png"], "label": [3]})), k=2)
    assert str(found) == "3  /q.png\n   1  1.0000  id 0\n   2  0.9950  id 1"


@pytest.mark.parametrize("value", [pd.Timestamp("2020-01-02"), [1, 2], b"owl", {"a": 1}, pd.Timedelta(1)])
def test_values_that_json_lacks_become_text(value: object) -> None:
    searched = index(path=PATHS)
    searched.metadata.frame["label"] = pd.Series([value] * 5)
    (found,) = search_images(searched, VECTORS[:1], nothing(1), k=1)
    assert json.loads(json.dumps(found.to_dict()))["matches"][0]["label"] == str(value)


def test_result_is_ready_for_json() -> None:
    labels = pd.Series([np.int64(5), np.int64(6), np.int64(7), None, np.int64(9)], dtype=object)
    searched = index(path=PATHS, label=range(5))
    searched.metadata.frame["label"] = labels  # as columns of mixed origin hold them
    found = search_images(searched, VECTORS[:1], Table(pd.DataFrame({"label": np.array([5])})), k=5)
    loaded = json.loads(json.dumps([each.to_dict() for each in found]))
    assert loaded[0]["query"] == {"label": 5}
    assert [match.get("label") for match in loaded[0]["matches"]] == [5, 6, 7, None, 9]
    assert [match["id"] for match in loaded[0]["matches"]] == [0, 1, 2, 3, 4]
