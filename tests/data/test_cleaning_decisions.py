"""Decisions about images become a new table, or an error that names the line."""

from pathlib import Path

import pandas as pd
import pytest

from tests.refusals import refused_call
from vicinal.data import Table, apply_decisions
from vicinal.utils.errors import InputError

PATHS = ["/p/owl/1.jpg", "/p/owl/2.jpg", "/p/kiwi/1.jpg", "/p/kiwi/3.jpg"]


@pytest.fixture
def table() -> Table:
    return Table(pd.DataFrame({"path": PATHS, "label": ["owl", "owl", "kiwi", "kiwi"]}))


def written(folder: Path, *lines: str) -> Path:
    (folder / "d.csv").write_text("\n".join(lines))
    return folder / "d.csv"


def test_images_are_dropped_relabeled_and_kept(table: Table, tmp_path: Path) -> None:
    rows = ["owl/1.jpg,0,drop,,0.5", "2.jpg,1,Relabel,kiwi,", "/p/kiwi/1.jpg,2,keep,,", "owl/1.jpg,0,drop,,0.7"]
    file = written(tmp_path, "path,row,decision,new_label,score", *rows, "nobody.jpg,7,,,")
    new = apply_decisions(table, file)
    assert new.frame.to_numpy().tolist() == [[PATHS[1], "kiwi"], [PATHS[2], "kiwi"], [PATHS[3], "kiwi"]]


def test_tables_of_integers_and_without_paths(tmp_path: Path) -> None:
    numbers = Table(pd.DataFrame({"label": [7, 8, 8]}))
    new = apply_decisions(numbers, written(tmp_path, "row,decision,new_label", "0,relabel,8", "2,drop,"))
    assert new.frame["label"].tolist() == [8, 8]
    for label in ("owl", "007", "9" * 30):
        with pytest.raises(InputError, match=f"new_label is '{label}', but the table's labels are integers"):
            apply_decisions(numbers, written(tmp_path, "row,decision,new_label", f"0,relabel,{label}"))


def test_a_number_does_not_choose_between_images(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    paths = ["/p/test/owl/1.jpg", "/p/train/owl/1.jpg", "/p/owl/1.jpg", "/home/me/2.jpg"]
    table = Table(pd.DataFrame({"path": paths}))
    with pytest.raises(InputError, match=r"line 2: owl/1\.jpg may be 3 images"):
        apply_decisions(table, written(tmp_path, "path,row,decision", "owl/1.jpg,0,drop"))
    assert apply_decisions(table, written(tmp_path, "path,decision", "~/2.jpg,drop")).paths == paths[:3]
    below = apply_decisions(table.take([0, 1, 2]), written(tmp_path, "path,row,decision", "owl/1.jpg,0,drop"))
    assert below.paths == paths[:2]  # the path below the folder of all images


def test_rows_of_one_path_are_told_apart_by_number_or_box(tmp_path: Path) -> None:
    same = Table(pd.DataFrame({"path": ["/p/1.jpg", "/p/1.jpg"], "label": ["a", "b"]}))
    assert apply_decisions(same, written(tmp_path, "path,row,decision", "1.jpg,1,drop")).frame["label"].tolist() == [
        "a"
    ]
    refused_call("may be 2 images", apply_decisions, same, written(tmp_path, "path,decision", "1.jpg,drop"))
    boxes = pd.DataFrame([[0, 0, 5, 5], [5, 5, 9, 9]], columns=["x_1", "y_1", "x_2", "y_2"])
    boxed = Table(same.frame.join(boxes))
    file = written(tmp_path, "path,decision", '"1.jpg [5, 5, 9, 9]",drop')
    assert apply_decisions(boxed, file).frame["label"].tolist() == ["a"]


def test_what_is_wrong_is_said_in_a_line(table: Table, tmp_path: Path) -> None:
    for lines, message in (
        (["path,decison", "1.jpg,drop"], "no columns are named decision"),
        (["path,decision", "2.jpg,delete"], "decision is 'delete'; it can be drop, relabel, keep"),
        (["path,decision", "2.jpg,relabel"], "relabel, but no new_label"),
        (["path,decision,new_label", "2.jpg,,kiwi"], "line 2: a new_label, but decision is ''; make it relabel"),
        (["path,decision", "2.jpg,drop", "owl/2.jpg,keep"], "line 3: another decision about owl/2.jpg than in .*2"),
        (["path,decision", *(f"{path},drop" for path in PATHS)], "every image of the table is dropped"),
    ):
        refused_call(message, apply_decisions, table, written(tmp_path, *lines))
