from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from vicinal.data.table import Table
from vicinal.errors import InputError
from vicinal.retrieval import Index, find

# The angle between two of them is the difference of their numbers, in tenths.
VECTORS = np.stack([np.cos(np.arange(5) / 10), np.sin(np.arange(5) / 10)], axis=1).astype(np.float32)
PATHS = [f"/{letter}.png" for letter in "abcde"]


def index(**columns: object) -> Index:
    return Index.build(VECTORS, Table(pd.DataFrame(columns, index=range(5))))


def nothing(rows: int) -> Table:
    return Table(pd.DataFrame(index=range(rows)))


def test_matches_come_with_what_is_known_of_them() -> None:
    queries = Table(pd.DataFrame({"path": ["/q.png", "/r.png"], "label": ["cat", "dog"], "camera": [1, 2]}))
    first, second = find(index(path=PATHS, label=list("vwxyz")), VECTORS[[0, 4]], queries, k=2)
    assert first.query == {"path": "/q.png", "label": "cat"}
    assert [(match["id"], match["path"], match["label"]) for match in first.matches] == [
        (0, "/a.png", "v"),
        (1, "/b.png", "w"),
    ]
    assert [match["score"] for match in first.matches] == pytest.approx([1, np.cos(0.1)], abs=1e-6)
    assert (second.query["label"], [match["id"] for match in second.matches]) == ("dog", [4, 3])


def test_vectors_of_which_nothing_is_known() -> None:
    found = find(index(), VECTORS[:3], nothing(3), k=1)
    assert [each.query for each in found] == [{}, {}, {}]
    assert [each.matches[0].keys() for each in found] == [{"id", "score"}] * 3
    assert find(index(), VECTORS[:0], nothing(0), k=1) == []


def test_what_is_missing_is_left_out() -> None:
    searched = Index.build(VECTORS[:2], Table(pd.DataFrame({"label": [5, 6]})))
    searched.add(VECTORS[2:], Table(pd.DataFrame({"path": PATHS[2:]})))
    (found,) = find(searched, VECTORS[:1], Table(pd.DataFrame({"id": [17]})), k=3)
    assert found.query == {"id": 17}
    assert [match.keys() - {"id", "score"} for match in found.matches] == [{"label"}, {"label"}, {"path"}]
    assert [match.get("label") for match in found.matches] == [5, 6, None]


def test_query_leaves_out_itself() -> None:
    table = Table(pd.DataFrame({"path": PATHS}))
    searched = index(path=PATHS)
    for k in (1, 3, 4):
        found = find(searched, VECTORS, table, k, leave_out_itself=True)
        assert [len(each.matches) for each in found] == [k] * 5
        for each in found:
            assert each.query["path"] not in [match["path"] for match in each.matches]
    assert [match["id"] for match in found[2].matches] == [1, 3, 0, 4]
    whole = find(searched, VECTORS, table, 5, leave_out_itself=True)
    assert [len(each.matches) for each in whole] == [4] * 5


def test_stranger_leaves_out_nothing() -> None:
    stranger = Table(pd.DataFrame({"path": ["/other.png"]}))
    for table, searched in ((stranger, index(path=PATHS)), (nothing(1), index(path=PATHS)), (nothing(1), index())):
        (found,) = find(searched, VECTORS[:1], table, 5, leave_out_itself=True)
        assert [match["id"] for match in found.matches] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("leave_out_itself", [False, True])
def test_more_matches_than_the_index_holds(leave_out_itself: bool) -> None:
    with pytest.raises(InputError, match="k = 6 is outside of what an index of 5 images can give"):
        find(index(), VECTORS[:1], nothing(1), 6, leave_out_itself)


def test_printing() -> None:
    (found,) = find(index(path=PATHS, label=list("vwxyz")), VECTORS[:1], nothing(1), k=2)
    assert str(found) == "query\n   1  1.0000  v  /a.png\n   2  0.9950  w  /b.png"
    (found,) = find(index(), VECTORS[:1], Table(pd.DataFrame({"path": ["/q.png"], "label": [3]})), k=2)
    assert str(found) == "3  /q.png\n   1  1.0000  id 0\n   2  0.9950  id 1"


def test_result_is_ready_for_json() -> None:
    labels = pd.Series([np.int64(5), np.int64(6), np.int64(7), None, np.int64(9)], dtype=object)
    searched = index(path=PATHS, label=range(5))
    searched._items["label"] = labels  # as columns of mixed origin hold them
    found = find(searched, VECTORS[:1], Table(pd.DataFrame({"label": np.array([5])})), k=5)
    loaded = json.loads(json.dumps([each.to_dict() for each in found]))
    assert loaded[0]["query"] == {"label": 5}
    assert [match.get("label") for match in loaded[0]["matches"]] == [5, 6, 7, None, 9]
    assert [match["id"] for match in loaded[0]["matches"]] == [0, 1, 2, 3, 4]
