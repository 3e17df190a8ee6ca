"""The first day of evaluating, embedding and indexing one's own photos: every mistake has its own answer."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.conftest import SMALL
from vicinal.cli.main import main
from vicinal.data import ImageTransform, Table, load_embeddings, save_embeddings
from vicinal.models import Embedder
from vicinal.retrieval import Index, PCAWhitening

Make = Callable[[Path], list[str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "model"
    Embedder("test_resnet", dim=8, pretrained=False, transform=ImageTransform(size=16)).save_pretrained(folder)
    return folder


@pytest.fixture
def work(tmp_path: Path, photos: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: photos, a model, embeddings."""
    shutil.copytree(photos, tmp_path / "photos")
    (tmp_path / "model").symlink_to(model)
    vectors = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    save_embeddings(tmp_path / "v.parquet", vectors, Table(pd.DataFrame({"label": list("aabbccdd")})))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def words(*given: str) -> Make:
    return lambda folder: list(given)


def with_broken(*given: str) -> Make:
    """A command about photos of which one cannot be read, as a folder and as a table."""

    def make(folder: Path) -> list[str]:
        Table.from_folder("photos").save("photos.csv")
        Path("photos/class4/3.png").write_bytes(b"no image")
        return list(given)

    return make


def table(text: str, *given: str) -> Make:
    def make(folder: Path) -> list[str]:
        Path("t.csv").write_text(text)
        return list(given)

    return make


SKIP = "class4/3.png: not an image of a known format (JPEG, PNG, WEBP, BMP, GIF, TIFF, PPM, TGA, JPEG2000, AVIF); " \
       "--on_error skip leaves out such images"  # fmt: skip
MODEL = ("--model", "model")
CASES: list[tuple[str, str, Make, str]] = [
    ("source", "missing image", words("search", "v.parquet", "lost.jpg"), "error: lost.jpg: no such file"),
    ("source", "missing table", words("evaluate", "lost.csv"), "error: lost.csv: no such file"),
    ("source", "missing folder", words("evaluate", "my/photos"), "error: my/photos: no such file or folder"),
    ("source", "misspelled benchmark", words("evaluate", "omniglott"), "benchmark; did you mean omniglot?"),
    ("source", "empty", words("evaluate", ""), "error: the source is empty; give a folder of images, a .csv or"),
    ("source", "empty images", words("evaluate", "model", "--images", ""), "error: the source is empty; give a folder"),
    ("source", "empty model", words("evaluate", "photos", "--model", ""), "model: the name is empty; give a folder"),
    ("source", "empty root", words("data", "photos", "--root", ""), "error: a path is empty; name a file or folder"),
    ("source", "empty to index", words("index", "build", "i", ""), "error: the source is empty; give a folder of"),
    ("source", "two things", words("evaluate", "README.md"), "error: README.md: no such file"),
    ("broken image", "evaluate a folder", with_broken("evaluate", "photos", *MODEL), SKIP),
    ("broken image", "evaluate a table", with_broken("evaluate", "photos.csv", *MODEL), SKIP),
    ("broken image", "embed a table", with_broken("embed", "photos.csv", *MODEL, "--out", "o.npy"), SKIP),
    ("broken image", "index a table", with_broken("index", "build", "i", "photos.csv", *MODEL), SKIP),
    ("broken image", "report", with_broken("report", "photos", *MODEL), SKIP),
    (
        "broken image",
        "train",
        with_broken("train", "--data.source=photos", *SMALL, "--data.fractions={train: 1}", "--out=run"),
        "--data.on_error skip le",
    ),
    ("column", "paths", table("file,label\na.png,cat\n", "evaluate", "t.csv", *MODEL), "t.csv: no column 'path'; the"),
    ("column", "named", table("path,label\na,b\n", "data", "t.csv", "--label_column", "kind"), "no column 'kind'; the"),
    (
        "metric",
        "of no image",
        words("evaluate", "v.parquet", "--metrics", "precision@0"),
        "precision@0 is impossible; use k from 1 up",
    ),
    (
        "metric",
        "beyond the gallery",
        words("evaluate", "v.parquet", "--metrics", "mAP@9"),
        "mAP@9 is impossible with 7",
    ),
    (
        "device",
        "meta",
        words("embed", "photos", *MODEL, "--out", "o.npy", "--device", "meta"),
        "device meta holds no values; use a",
    ),
    ("scales", "too large", words("embed", "photos", *MODEL, "--out", "o.npy", "--scales", "1e9"), "error: scale 1"),
    (
        "scales",
        "negative",
        words("embed", "photos", *MODEL, "--out", "o.npy", "--scales", "0"),
        "scale 0.0 is impossible",
    ),
]


@pytest.mark.parametrize(("kind", "case", "make", "expected"), CASES, ids=[f"{each[0]}: {each[1]}" for each in CASES])
def test_first_mistakes_have_one_line_that_answers(
    kind: str, case: str, make: Make, expected: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = make(work)
    capsys.readouterr()
    try:
        status = main(arguments)
    except SystemExit as stopped:
        status = stopped.code
    captured = capsys.readouterr()
    assert status == 2, captured.err
    assert len(captured.err.splitlines()) == 1, captured.err
    assert expected in captured.err
    assert not re.search(r"\bNone\b|True|False|9223372036854775807|_column=|\w+\(\)", captured.err)
    assert captured.out == ""
    assert not Path("i").exists()


@pytest.mark.parametrize("verb", ["embed", "index", "search"])
def test_folders_are_embedded_indexed_and_searched_without_broken_images(verb: str, work: Path, capsys) -> None:
    with_broken()(work)
    if verb == "search":
        Path("photos/class4/3.png").rename("3.png")
        assert main(["index", "build", "i", "photos", *MODEL]) == 0
        Path("3.png").rename("photos/class4/3.png")
    commands = {
        "embed": ["embed", "photos", *MODEL, "--out", "o.npy"],
        "index": ["index", "build", "i", "photos", *MODEL],
        "search": ["search", "i", "photos/class4", *MODEL, "-k", "1"],
    }
    capsys.readouterr()
    assert main(commands[verb]) == 0
    head, broken, *_ = capsys.readouterr().err.splitlines()
    assert head == f"left out 1 of {6 if verb == 'search' else 48} images that cannot be read:"
    assert broken.startswith("  row ")
    if verb == "embed":
        assert load_embeddings("o.npy")[0].shape == (47, 8)
    if verb == "index":
        assert len(Index.load("i")) == 47
    again = ["--overwrite"] if verb == "index" else []
    assert main([*commands[verb], *again, "--on_error", "raise"]) == 2
    assert SKIP in capsys.readouterr().err
    if verb == "index":
        assert len(Index.load("i")) == 47  # an index is replaced only by one that is complete


def test_the_setting_of_the_training_is_carried_on(work: Path, capsys) -> None:
    with_broken()(work)
    splits = "--data.fractions={train: 0.75, test: 0.25}"
    assert main(["train", "--data.source=photos", *SMALL, splits, "--data.on_error=skip", "--out=run"]) == 0
    Path("photos/class0/0.png").write_bytes(b"no image")
    capsys.readouterr()
    assert main(["evaluate", "run"]) == 0
    assert "left out 2 of 48 images that cannot be read:" in capsys.readouterr().err
    assert main(["evaluate", "run", "--on_error", "raise"]) == 2
    assert "class0/0.png: not an image" in capsys.readouterr().err


def test_whitening_learns_from_the_split_train_unless_told(work: Path, capsys) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"label": np.arange(40) % 8, "split": ["train", "val", "test", "test"] * 10})
    frame["label"] = frame["label"] + 10 * (frame["split"] != "train") + 10 * (frame["split"] == "test")
    vectors = rng.normal(size=(40, 4)).astype(np.float32)
    save_embeddings("splits.parquet", vectors, Table(frame))
    learned = {
        "": "whitening to 4 dimensions, learned from 10 embeddings: 10 of the split train",
        "test": "whitening to 4 dimensions, learned from 20 embeddings: 20 of the split test",
        "all": "learned from 40 embeddings: 10 of the split train, 10 of the split val, 20 of the split test",
    }
    for split, message in learned.items():
        more = ["--split", split] if split else []
        assert main(["whiten", "splits.parquet", *more, "--out", f"w{split}.safetensors"]) == 0
        assert message in capsys.readouterr().err
    of_train = PCAWhitening.fit(vectors[::4])
    assert PCAWhitening.load("w.safetensors").fingerprint() == of_train.fingerprint()
    assert main(["whiten", "v.parquet", "--out", "w.safetensors"]) == 0
    assert "learned from 8 embeddings; they have no splits" in capsys.readouterr().err


def test_one_class_is_warned_of(work: Path, capsys) -> None:
    save_embeddings("one.npy", np.eye(4, dtype=np.float32), Table(pd.DataFrame({"label": ["cat"] * 4})))
    assert main(["evaluate", "one.npy"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "one.npy: only one class ('cat', 4 images): every image is a match, so the scores tell nothing about the model"
    ]
