"""Data with which training cannot begin, or cannot go on: one line before anything is computed."""

from __future__ import annotations

import io
import logging

import pytest
from PIL import Image

from tests.bad_input.conftest import Files, Refused
from tests.conftest import SMALL
from vicinal.models import Embedder
from vicinal.training import Recipe
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
    ("x", "all 5 classes have one image ('a' and so on)", pictures(a=1, b=1, c=1, d=1, e=1)),
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
