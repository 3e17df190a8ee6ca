"""A snapshot after any changes finds what an index with these changes finds, and older snapshots stay as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tests.serving.service import DIM, random_vectors
from vicinal import ContextRefiner, Index, Table
from vicinal.retrieval.search import search_images
from vicinal.serving.store.changes import Change, ColumnKinds, frame_of
from vicinal.serving.store.snapshot import Snapshot, apply_changes
from vicinal.utils.errors import InputError

QUERIES = random_vectors(6, seed=9)
QUERY_TABLE = Table(pd.DataFrame(index=range(6)))
ROOT = "/photos"


def build(kind: Any = "exact", refiner: Any = None, count: int = 40) -> Index:
    frame = pd.DataFrame({
        "path": [f"{ROOT}/{i}.png" for i in range(count)],
        "label": [f"class{i % 4}" for i in range(count)],
        "price": np.arange(count),
        "weight": np.where(np.arange(count) % 5 == 0, np.nan, np.arange(count) / 2),
    })  # fmt: skip
    index = Index.build(random_vectors(count), Table(frame), kind, refiner=refiner)
    index.root = ROOT
    return index


def random_changes(rng: np.random.Generator, snapshot: Snapshot, count: int) -> list[Change]:
    changes, there, next_id = [], snapshot.metadata.ids.tolist(), snapshot.next_id
    for _ in range(count):
        if rng.random() < 0.4 and len(there) > 10:
            gone = rng.choice(there, rng.integers(1, 4), replace=False).tolist()
            there = [each for each in there if each not in gone]
            changes.append(Change(deleted=tuple(gone)))
        else:
            rows = [{"label": f"class{rng.integers(5)}", "price": int(rng.integers(60))}, {"note": "new"}, {}]
            row = {**rows[rng.integers(3)], **({"weight": float(rng.random())} if rng.random() < 0.5 else {})}
            changes.append(Change(next_id, rng.normal(size=(1, DIM)).astype(np.float32), (row,)))
            there.append(next_id)
            next_id += 1
    return changes


def found(index: Any, refiner: Any = None, **options: Any) -> list[list[dict[str, Any]]]:
    results = search_images(index, QUERIES, QUERY_TABLE, 5, refiner=refiner, **options)
    return [each.matches for each in results]


def check_same(snapshot: Snapshot, index: Index, refiner: Any = None) -> None:
    np.testing.assert_array_equal(snapshot.metadata.ids, index.metadata.ids)
    np.testing.assert_allclose(snapshot.vectors(), index.vectors(), atol=1e-6)
    cases: list[dict[str, Any]] = [{}, {"where": "price > 20"}, {"where": "label == 'class1' or weight is None"},
                                   {"group_by": "label"}]  # fmt: skip
    if "note" in index.metadata.frame:
        cases.append({"where": "note is not None or price < 9"})
    for case in cases:
        left, right = found(snapshot, refiner, **case), found(index, refiner, **case)
        for mine, theirs in zip(left, right, strict=True):
            np.testing.assert_allclose([m.pop("score") for m in mine], [m.pop("score") for m in theirs], atol=1e-5)
            assert mine == theirs, case


@pytest.mark.parametrize("kind", ["exact", "hnsw"])
def test_changes_are_those_of_an_index(kind: Any) -> None:
    rng, index, snapshot = np.random.default_rng(1), build(kind), Snapshot.of(build(kind))
    first, before = snapshot, found(snapshot)
    for _ in range(6):
        changes = random_changes(rng, snapshot, 7)
        for change in changes:
            apply_changes(index, [change])
        snapshot = snapshot.after(changes)
        check_same(snapshot, index)
    assert found(first) == before
    assert first.next_id == 40


def test_a_refined_index_refines_what_is_added() -> None:
    torch.manual_seed(0)
    refiner = ContextRefiner(DIM, num_heads=2, neighbors=4)
    for block in refiner.blocks:
        torch.nn.init.normal_(block.output, std=0.3)
    index, snapshot = build(refiner=refiner), Snapshot.of(build(refiner=refiner))
    for change in random_changes(np.random.default_rng(2), snapshot, 12):
        apply_changes(index, [change], refiner)
        snapshot = snapshot.after([change], refiner)
    check_same(snapshot, index, refiner)
    with pytest.raises(InputError, match="refined by"):
        snapshot.after([Change(snapshot.next_id, random_vectors(1), ({},))])


def test_conditions_see_paths_as_they_are_shown() -> None:
    snapshot = Snapshot.of(build()).after([Change(40, random_vectors(1), ({"path": "/secret/added/x.jpg"},))])
    assert snapshot.where("path == '3.png' or path == 'x.jpg'").tolist() == [3, 40]
    assert snapshot.where("'photos' in path or 'secret' in path").tolist() == []


def test_a_new_column_is_missing_in_the_others() -> None:
    for value, condition in (("x", "new == 'x'"), (3, "new == 3"), (2.5, "new > 2"), (True, "new")):
        snapshot = Snapshot.of(build()).after([Change(40, random_vectors(1), ({"new": value},))])
        assert snapshot.where(condition).tolist() == [40], value
        assert snapshot.where("price < 2").tolist() == [0, 1], value
        assert len(snapshot.where("new is None")) == 40, value
        assert search_images(snapshot, QUERIES, QUERY_TABLE, 3, group_by="new")[0].matches


def test_rows_of_every_kind_survive_a_save(tmp_path: Any) -> None:
    rows = [{"a": 1}, {"b": 0.5, "label": "é"}, {"c": True, "a": None}, {}, {"d": "x", "b": 2}, {"a": 2**63 - 1}]
    index = build()
    apply_changes(index, [Change(40, random_vectors(6), tuple(rows))])
    index.save(tmp_path / "index")
    frame = Index.load(tmp_path / "index").metadata.lookup(range(40, 46))
    for number, row in enumerate(rows):
        for name in ("a", "b", "c", "d", "label"):
            value = frame[name][number]
            assert pd.isna(value) if row.get(name) is None else value == row[name], (number, name)


def test_kinds_of_columns() -> None:
    frame = pd.DataFrame({"id": [0], "whole": [1], "number": [0.5], "flag": [True], "text": ["a"], "none": [None]})
    kinds = ColumnKinds.of(frame, max_columns=8)
    good = {"whole": 2.0, "number": 3, "flag": False, "text": 7, "none": 1.5}
    assert kinds.checked(good) == {"whole": 2, "number": 3.0, "flag": False, "text": "7", "none": 1.5}
    assert [type(value) for value in kinds.checked(good).values()] == [int, float, bool, str, float]
    for wrong in ({"whole": "a"}, {"whole": True}, {"number": "1"}, {"flag": 1}, {"text": 1.5}, {"text": True}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            kinds.checked(wrong)
    kinds.extend({"new": 1, "none": 1.5})
    for wrong in ({"new": "a"}, {"none": "a"}):
        with pytest.raises(InputError):
            kinds.checked(wrong)
    with pytest.raises(InputError, match="may have 8"):
        kinds.extend({"one": 1, "two": 2})
    assert frame_of([{}, {}]).shape == (2, 0)
