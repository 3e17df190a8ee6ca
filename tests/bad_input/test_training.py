"""Data with which training cannot begin, or cannot go on: one line before anything is computed."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from tests.bad_input.conftest import Files, Refused
from tests.conftest import SMALL
from vicinal.cli.main import main
from vicinal.data import Table, load_table
from vicinal.models import Embedder
from vicinal.training import Recipe, train
from vicinal.utils.errors import InputError

TRAIN = f"train {' '.join(SMALL)} --out run --data.source"
VALIDATE_E = "--data.classes '{train: [a, b, c, d], val: [e]}'"


def pictures(**classes: int) -> Files:
    """A folder x with so many pictures per class."""
    file = io.BytesIO()
    Image.new("RGB", (20, 20)).save(file, "PNG")
    return {f"x/{label}/{number}.png": file.getvalue() for label, count in classes.items() for number in range(count)}


def coarse(number: int) -> Files:
    """A table of eight classes with that many coarse labels; more than four are given regardless of the classes."""
    rows = range(48)
    return {
        "t.csv": "path,label,coarse\n"
        + "".join(f"{row}.png,{row // 6},kind {(row if number > 4 else row // 6) % number}\n" for row in rows)
    }


CASES: list[tuple[str, str, Files]] = [
    ("nowhere", "nowhere: no such folder", {}),
    (".", "no image in this folder", {}),
    ("x", "only one class ('a', 5 images)", pictures(a=5)),
    ("x", "have one image", pictures(a=1, b=1, c=1, d=1, e=1)),
    (f"x {VALIDATE_E}", "the split val has no class with two images", pictures(a=4, b=4, c=4, d=4, e=1)),
    (f"x {VALIDATE_E} --validation.metric recall@8", "validation.metric = recall@8 needs more than the 3 images",
     pictures(a=4, b=4, c=4, d=4, e=3)),
    ("t.csv", "t.csv: no column 'label'", {"t.csv": "path,name\na.png,x\n"}),
    ("t.csv", ".png: no such file; --data.on_error skip leaves out such images",
     {"t.csv": "path,label\n" + "".join(f"{i}.png,{i % 8}\n" for i in range(32))}),
    ("~/photos --devices=100000", "devices = 1", {}),
    ("~/photos --batch_size 64", "takes 32 classes", {}),
    ("~/photos --coarse_classes_per_batch 2", "coarse_column = coarse: coarse_classes_per_batch needs coarse", {}),
    ("t.csv --coarse_classes_per_batch 2 --batch_size 4", "there is only one coarse class (kind 0)", coarse(1)),
    ("t.csv --coarse_classes_per_batch 4", "coarse_classes_per_batch is 4, but there are only 2 coarse", coarse(2)),
    ("t.csv --coarse_classes_per_batch 2", "has the coarse labels kind 0 and kind 1; a class has one", coarse(5)),
    ("~/photos --data.noise.confusions pairs.csv --data.noise.confused_labels 0.1", "pairs.csv: no such file", {}),
    ("~/photos --out old", "exists already", {"old/a.png": b""}),
]  # fmt: skip


@pytest.mark.parametrize(("words", "message", "files"), CASES)
def test_data_that_cannot_be_trained_on(words: str, message: str, files: Files, refused: Refused) -> None:
    refused(f"{TRAIN} {words}", message, files)


def test_a_class_with_one_image_is_warned_of_by_name(
    place: Path, small: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for name, data in pictures(a=4, b=4, c=4, d=4, lonely=1).items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    words = ["--data.source=x", "--data.fractions={train: 1.0}", "--epochs=1", "--out=run"]
    assert main(["train", *small, *words]) == 0
    assert "class 'lonely' has one image" in capsys.readouterr().err


def test_classes_for_testing_are_not_trained_on(small: list[str], photos: Path, tmp_path: Path) -> None:
    frame = load_table(photos).frame
    split = ["test" if label in ("class6", "class7") else "train" for label in frame["label"]]
    Table(frame.assign(split=split)).save(tmp_path / "split.csv")
    fractions = "--data.fractions={train: 0.6, val: 0.2, test: 0.2}"
    recipe = Recipe.load(overrides=[*small, f"--data.source={tmp_path / 'split.csv'}", fractions])
    with pytest.raises(InputError, match=r"has a test split of 12 images.* divide the others into train and val, or"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_the_table_forbids_comes_before_the_model(
    small: list[str], photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recipe, "create_embedder", lambda self: pytest.fail("the model was created first"))
    frame = load_table(photos).frame
    pd.DataFrame(frame).drop_duplicates("label").to_csv(tmp_path / "single.csv")
    for more, line in (
        ([f"--data.source={tmp_path / 'single.csv'}"], "single.csv|class"),
        (["--batch_size=128", "--samples_per_class=4"], "batch_size"),
        (["--coarse_classes_per_batch=2"], "coarse_column"),
    ):
        with pytest.raises(InputError, match=line):
            train(Recipe.load(overrides=[*small, *more]), tmp_path / "run")


def test_the_retries_of_the_hub_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def fail(self: Embedder, *_: object, **__: object) -> None:
        for number in range(1, 6):
            client.warning("'(MaxRetryError)' thrown while requesting HEAD https://huggingface.co/x")
            client.warning(f"Retrying in 1s [Retry {number}/5].")
        raise InputError("cannot download; use pretrained=false or a local file")

    client = logging.getLogger("huggingface_hub.utils._http")
    recipe = Recipe.load()
    monkeypatch.setattr(Embedder, "__init__", fail)
    with pytest.raises(InputError, match=r"^model: cannot download; use model.pretrained: false or a local file$"):
        recipe.create_embedder()
    line = "the Hugging Face Hub does not answer; trying again a few times (not with HF_HUB_OFFLINE=1)"
    assert capsys.readouterr().err == f"{line}\n"
    assert not client.filters
