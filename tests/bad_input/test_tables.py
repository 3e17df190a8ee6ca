"""Folders, tables, what `vicinal data` is told about them, and data with which training cannot begin."""

import io
import logging
import os
import shutil
import socket
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.bad_input.conftest import Files, Refused, write
from tests.conftest import SMALL
from tests.refusals import refused_call
from vicinal.cli.main import main
from vicinal.data import Table, save_embeddings
from vicinal.data.loading import load_run_table
from vicinal.evaluation import evaluate_arrays
from vicinal.models import Embedder
from vicinal.retrieval import PCAWhitening
from vicinal.training import Recipe
from vicinal.utils.errors import InputError


def csv(text: str | bytes) -> Files:
    return {"t.csv": text}


NOISE = "~/photos --noise"
CASES: list[tuple[str, str, Files]] = [
    # Sources
    ("photo", "photo: no such folder, file or benchmark; the benchmarks are", {}),
    ("photos.cvs", "photos.cvs: no such file", {}),
    ("~/photos/class0/0.png", "0.png: neither a folder nor a .csv or .parquet table", {}),
    ("list.txt", "neither a folder nor a .csv or .parquet", {"list.txt": "a.png cat"}),
    ("t.csv", "t.csv: no image in this folder or below", {"t.csv/notes.txt": ""}),
    ("docs", "docs: no image in this folder or below (known are .avif,", {"docs/a.txt": ""}),
    ("x", "there are 1 .heic; HEIC needs the package pillow-heif", {"x/cat/1.HEIC": ""}),
    ("x", "x: holds b beside the", {"x/train/a/1.png": "", "x/test/a/1.png": "", "x/b/1.png": ""}),
    # Tables
    ("t.csv", "t.csv: no column 'path'; the columns", csv("a.png,cat\nb.png,dog\n")),
    ("t.csv", "line 2: split is 'dev'; it can", csv("path,label,split\na,b,dev\n")),
    ("t.csv --label_column kind", "no column 'kind'; the", csv("path,label\na,b\n")),
    ("t.csv", "line 2: a field of more than 131,072 characters", csv("path,label\na.png," + "x" * 200_000)),
    ("t.csv", "line 2: text after a closing quotation mark", csv('path,label\n"a"b.png",cat\n')),
    ("t.csv", "line 2", csv("path,label\na\0.png,cat\n")),
    ("t.csv", "line 2: not UTF-8 text; save the file as UTF-8", csv(b"path,label\na.png,\xed\xa0\x80\n")),
    # Flags
    ("~/photos --root ~/photos", "photos: a folder of images takes no root", {}),
    ("digits --root nowhere", "nowhere: no such file or folder", {}),
    ("digits --root ''", "a path is empty; name a file or folder", {}),
    ("~/photos --out t.xlsx", "t.xlsx: a table is written to a file en", {}),
    ("~/photos --fractions '{train: half}'", "--fractions: {train: half} must be a mapping, each value a", {}),
    # Noise
    (f"{NOISE}.confusions pairs.csv", "data.noise.confused_labels = 0.0 must be above 0 with data.noise.conf", {}),
    (f"{NOISE}.foreign x --noise.foreign_fraction 0.5", "0.5 of 48 training images are 24, but there are only 2",
     {"x/1.png": "", "x/2.png": ""}),
    (f"{NOISE}.classes 9", "classes is 9, of 8 training classes", {}),
    (f"{NOISE}.random_labels some", "argument --noise.random_labels: some is not a number", {}),
    # The terminal
    ("'\x1b[2J\u202e'", "\\x1b[2J\\u202e: no such", {}),
]  # fmt: skip


@pytest.mark.parametrize(("words", "message", "files"), CASES)
def test_a_table_that_cannot_be_used(words: str, message: str, files: Files, refused: Refused) -> None:
    refused(f"data {words}", message, files)


def test_controlling_characters_in_names_of_images_do_not_reach_the_terminal(place: Path, good: Path, capsys) -> None:
    shutil.copytree(good / "photos", "photos")
    Path("photos/class0/\x1b[2J\u202e.png").write_bytes(b"no image")
    assert main(["embed", "photos", "--model", f"{good}/m1", "--out", "v.npy"]) == 0
    message = capsys.readouterr().err
    assert "\\x1b[2J\\u202e.png" in message
    assert "\x1b" not in message
    assert "\u202e" not in message


@pytest.mark.parametrize("source", [".", "photos/.."])
def test_the_working_folder_can_be_the_source(source: str, place: Path, good: Path, capsys) -> None:
    shutil.copytree(good / "photos", "photos")
    for number in range(4):
        Path(f"photos/link{number}").symlink_to(place)
    assert main(["data", source]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[1].split()[:3] == ["all", "48", "8"]  # the last line is the fingerprint
    assert captured.err == ""


def test_nothing_is_said_twice(place: Path, good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for split in ("train", "test"):
        shutil.copytree(good / "photos", f"split/{split}")
    Path("split/test/class0/a.heic").touch()
    assert main(["data", "split", "--out", "t.csv"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line[:44] for line in lines] == [
        "split: left out files of unsupported formats",
        "vicinal data: warning: class 'class0' is in ",
        "wrote t.csv",
    ]


def test_minus_zero_is_another_label_than_zero(place: Path) -> None:
    write(place, csv("path,label\na.png,0\nb.png,-0\n"))
    assert Table.from_csv("t.csv").classes == ["-0", "0"]


def test_masked_numbers_are_refused(place: Path) -> None:
    vectors = np.ma.masked_array(np.eye(2), mask=[[True, False], [False, False]])
    labels = np.ma.masked_array([1, 2], mask=[True, False])
    for use in (
        lambda: save_embeddings("v.npy", vectors, Table(pd.DataFrame({"label": [1, 2]}))),
        lambda: evaluate_arrays(np.eye(2), labels, np.eye(2), [1, 2]),
        lambda: evaluate_arrays(vectors, [1, 2], np.eye(2), [1, 2]),
        lambda: PCAWhitening.fit(vectors),
    ):
        refused_call(r"1 of [24] values is masked; give an array in which every value counts", use)


@pytest.mark.parametrize("change", ["shuffled", "labels", "shorter", "of another program"])
def test_a_changed_table_of_a_run_is_refused(change: str, place: Path) -> None:
    path = place / "table.parquet"
    frame = pd.DataFrame({"path": ["a.png", "b.png", "c.png"], "label": [1, 2, 1], "split": ["train", "test", "train"]})
    Table(frame).save(path)
    pd.testing.assert_frame_equal(load_run_table(path).frame, Table(frame).frame)
    stored = pq.read_table(path)
    if change == "shuffled":
        pq.write_table(stored.take([2, 1, 0]), path)
    elif change == "labels":
        pq.write_table(stored.set_column(1, "label", pa.array([2, 1, 2])), path)
    elif change == "shorter":
        pq.write_table(stored.slice(0, 2), path)
    else:
        frame.to_parquet(path)
    refused_call(r"table\.parquet: has changed since the run wrote it; restore the file", load_run_table, path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_pipes_sockets_and_devices_are_refused(refused: Refused, place: Path) -> None:
    os.mkfifo("t.csv")
    Path("v.npy").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("w.safetensors")
    for words in ("data t.csv", "evaluate v.npy", "evaluate ~/v.parquet --whitening w.safetensors"):
        refused(words, "is a pipe, socket or device; give a file")


TRAIN = f"train {' '.join(SMALL)} --out run --data.source"
VALIDATE_E = "--data.classes '{train: [a, b, c, d], val: [e]}'"


def pictures(**classes: int) -> Files:
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


TRAINING: list[tuple[str, str, Files]] = [
    ("x", "only one class ('a', 5 images)", pictures(a=5)),
    ("x", "all 5 classes have one image ('a' and so on)", pictures(a=1, b=1, c=1, d=1, e=1)),
    (f"x {VALIDATE_E}", "the split val has no class with two images", pictures(a=4, b=4, c=4, d=4, e=1)),
    (f"x {VALIDATE_E} --validation.metric recall@8", "validation.metric = recall@8 needs more than the 3 images",
     pictures(a=4, b=4, c=4, d=4, e=3)),
    ("t.csv", "t.csv: no column 'label'", {"t.csv": "path,name\na.png,x\n"}),
    ("t.csv", ".png: no such file; --data.on_error skip leaves out such images",
     {"t.csv": "path,label\n" + "".join(f"{i}.png,{i % 8}\n" for i in range(32))}),
    ("~/photos --devices=100000", "devices = 1", {}),
    ("~/photos --batch_size 64", "needs 32 classes", {}),
    ("~/photos --coarse_classes_per_batch 2", "coarse_column = coarse: coarse_classes_per_batch needs coarse", {}),
    ("t.csv --coarse_classes_per_batch 2 --batch_size 4", "there is only one coarse class (kind 0)", coarse(1)),
    ("t.csv --coarse_classes_per_batch 4", "coarse_classes_per_batch is 4, but there are only 2 coarse", coarse(2)),
    ("t.csv --coarse_classes_per_batch 2", "has the coarse labels kind 0 and kind 1; a class has one", coarse(5)),
    ("~/photos --data.noise.confusions pairs.csv --data.noise.confused_labels 0.1", "pairs.csv: no such file", {}),
    ("~/photos --out old", "exists already", {"old/a.png": b""}),
]  # fmt: skip


@pytest.mark.parametrize(("words", "message", "files"), TRAINING)
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
    refused_call(r"^model: cannot download; use model.pretrained: false or a local file$", recipe.create_embedder)
    line = "the Hugging Face Hub does not answer; trying again a few times (not with HF_HUB_OFFLINE=1)"
    assert capsys.readouterr().err == f"{line}\n"
    assert not client.filters
