from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.data.containers.pictures import encoded
from vicinal.data import load_table
from vicinal.utils.errors import InputError


def export(folder: Path, labels: Any, classes: list[str] | None = None, files: tuple[str, ...] = ()) -> Path:
    """A FiftyOne export of images a.png, b.png and sub/c.png, and further files."""
    for number, name in enumerate(("a.png", "b.png", "sub/c.png", *files)):
        (folder / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "data" / name).write_bytes(encoded(number))
    (folder / "labels.json").write_text(json.dumps({"classes": classes, "labels": labels}))
    return folder


def test_labels_are_numbers_names_or_mappings(tmp_path: Path, capsys) -> None:
    folder = export(tmp_path, {"sub/c": 1, "a": {"label": 0, "confidence": 0.9}, "b": None}, ["owl", "kiwi"])
    table = load_table(f"fiftyone:{folder}")
    assert table.paths == [str(tmp_path / "data" / "sub" / "c.png"), str(tmp_path / "data" / "a.png")]
    assert table.frame["label"].tolist() == ["kiwi", "owl"]
    assert "left out 1 images without a label" in capsys.readouterr().err
    folder = export(tmp_path, {"a": "owl", str(tmp_path / "data" / "b.png"): {"label": "kiwi"}})
    table = load_table(f"fiftyone:{folder}")
    assert [Path(path).name for path in table.paths] == ["a.png", "b.png"]
    assert table.frame["label"].tolist() == ["owl", "kiwi"]


def test_an_export_per_split(tmp_path: Path) -> None:
    export(tmp_path / "train", {"a": "owl"})
    export(tmp_path / "validation", {"b": "kiwi"})
    export(tmp_path / "other", {"b": "emu"})
    table = load_table(f"fiftyone:{tmp_path}")
    assert table.frame[["label", "split"]].to_numpy().tolist() == [["owl", "train"], ["kiwi", "val"]]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"a": 2}, "'a': the label is 2, but there are 2 classes, numbered from 0"),
        ({"a": -1}, "'a': the label is -1, but there are 2 classes"),
        ({"a": [{"label": 1}]}, "'a': has a list of labels; one class per image can be read"),
        ({"a": 1.5}, "'a': the label 1.5 is neither a name nor a number"),
        ({"a": 0, "x": 1, "y": 1}, "2 of 3 images that its lists name are absent: data/x.*, data/y.*"),
        ({"a": None}, "labels.json: no image has a label"),
        ([1], "has no mapping 'labels' of images to classes; export the type image classification"),
    ],
)
def test_broken_exports(labels: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        load_table(f"fiftyone:{export(tmp_path, labels, ['owl', 'kiwi'])}")


def test_other_folders_are_no_exports(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no labels\.json in this folder, nor in folders train, validation and test"):
        load_table(f"fiftyone:{tmp_path}")
    export(tmp_path, {"a": "owl"}, files=("a.jpg",))
    with pytest.raises(InputError, match=r"data: a\.png and a\.jpg have one name in labels\.json"):
        load_table(f"fiftyone:{tmp_path}")
    (tmp_path / "labels.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match=r"labels\.json: not JSON"):
        load_table(f"fiftyone:{tmp_path}")
