"""Everything a user can get wrong, with the one line that answers it: status 2, no traceback, nothing left behind."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import resource
import shutil
import struct
import zlib
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from tests.conftest import SMALL
from vicinal.cli.main import main
from vicinal.data import Table, load_embeddings, load_table, save_embeddings
from vicinal.models import ContextRefiner, Embedder
from vicinal.retrieval import Index


def train(source: object, *more: object) -> list[str]:
    return ["train", "--data.source", str(source), *SMALL, "--out", "run", *map(str, more)]


def picture(path: Path, color: int = 90) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 20), (color, color, color)).save(path)
    return path


def folder_of(folder: Path, **classes: int) -> Path:
    for label, count in classes.items():
        for number in range(count):
            picture(folder / label / f"{number}.png")
    return folder


def text(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


def broken_image(folder: Path, photos: Path) -> Path:
    shutil.copytree(photos, folder / "photos")
    (folder / "photos" / "class4" / "3.png").write_bytes(b"not a picture")
    return folder / "photos"


def huge_image(path: Path) -> Path:
    """A PNG that says it has 100,000 x 100,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(bytes(1000)))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + data + chunk(b"IEND", b""))
    return path


def coarse_labels(folder: Path, photos: Path, number: int) -> Path:
    """A table of the photos with that many coarse labels; more than four are assigned regardless of the classes."""
    frame = load_table(photos).frame
    position = np.arange(len(frame)) if number > 4 else frame["label"].str[-1].astype(int)
    Table(frame.assign(coarse=[f"kind {each % number}" for each in position])).save(folder / "t.csv")
    return folder / "t.csv"


def saved_model(folder: Path, dim: int = 16) -> Path:
    from vicinal.data import ImageTransform

    Embedder("test_resnet", dim=dim, pretrained=False, transform=ImageTransform(size=16)).save_pretrained(folder)
    return folder


def saved_index(folder: Path, dim: int, rows: int = 5) -> Path:
    vectors = np.random.default_rng(0).normal(size=(rows, dim)).astype(np.float32)
    Index.build(vectors, Table(pd.DataFrame({"label": ["a"] * rows}))).save(folder)
    return folder


def saved_refiner(folder: Path, dim: int = 4, model: str | None = None) -> Path:
    refiner = ContextRefiner(dim, depth=1, num_heads=2, attention_start="random")
    refiner.model_fingerprint = model
    refiner.save_pretrained(folder)
    return folder


def saved_vectors(path: Path, vectors: np.ndarray) -> Path:
    save_embeddings(path, vectors.astype(np.float32), Table(pd.DataFrame({"label": ["a"] * len(vectors)})))
    return path


def refine(*more: object) -> list[str]:
    return [
        "refine",
        "--out",
        "run",
        "--batch_size",
        "4",
        "--samples_per_class",
        "2",
        "--refiner.num_heads",
        "2",
        *map(str, more),
    ]


def labeled(path: Path, **classes: int) -> Path:
    """Embeddings of so many images a class; the classes a to d are in the split train, all others in val."""
    labels = np.repeat(list(classes), list(classes.values()))
    splits = ["train" if label in "abcd" else "val" for label in labels]
    vectors = np.random.default_rng(0).normal(size=(len(labels), 4)).astype(np.float32)
    save_embeddings(path, vectors, Table(pd.DataFrame({"label": labels, "split": splits})))
    return path


def shared(path: Path) -> Path:
    """Embeddings whose class x is in both splits."""
    labeled(path, a=4, b=4, x=4, y=4)
    vectors, table = load_embeddings(path)
    split = table.frame["split"].where(table.frame.index != 8, "train")
    save_embeddings(path, vectors, Table(table.frame.assign(split=split)))
    return path


def refiner_run(folder: Path) -> Path:
    """The folder of a refiner's run that has begun."""
    folder.mkdir()
    labeled(folder / "embeddings.parquet", a=4, x=4)
    (folder / "recipe.yaml").write_text("epochs: 3\n")
    return folder


def unlabeled(path: Path) -> Path:
    save_embeddings(path, np.eye(4, dtype=np.float32), Table(pd.DataFrame({"path": list("abcd")})))
    return path


def run_without_model(folder: Path, photos: Path) -> Path:
    load_table(photos).split_classes(fractions={"train": 0.5, "val": 0.5}).save(folder / "r" / "table.parquet")
    text(folder / "r" / "recipe.yaml", "epochs: 3\n")
    return folder / "r"


def searching(folder: Path) -> list[str]:
    return ["search", str(saved_index(folder / "i", 4)), str(saved_vectors(folder / "v.parquet", np.eye(4)))]


Case = Callable[[Path, Path], list[str]]

# name: (arguments made in an empty folder, and with a good folder of photos; what the one line says)
CASES: dict[str, tuple[Case, str]] = {
    "no such folder": (lambda t, p: train("nowhere"), "nowhere: no such folder"),
    "empty folder": (lambda t, p: train(t), "no image in this folder"),
    "no source": (lambda t, p: ["train", "--out", "run"], "data.source is missing"),
    "no out": (lambda t, p: ["train"], "--out is missing"),
    "one class": (lambda t, p: train(folder_of(t / "x", a=5)), "only one class ('a', 5 images)"),
    "classes with one image": (lambda t, p: train(folder_of(t / "x", a=1, b=1, c=1, d=1, e=1)), "have one image"),
    "nothing to validate with": (
        lambda t, p: train(folder_of(t / "x", a=4, b=4, c=4, d=4, e=1), "--data.classes", VALIDATE_E),
        "the split val has no class with two images",
    ),
    "validation metric beyond the split": (
        lambda t, p: train(folder_of(t / "x", a=4, b=4, c=4, d=4, e=3), "--data.classes", VALIDATE_E, *RECALL_AT_8),
        "validation.metric = recall@8 needs more than the 3 images",
    ),
    "label column missing": (
        lambda t, p: train(text(t / "t.csv", "path,name\na.png,x\n")),
        "t.csv: no column 'label'",
    ),
    "CSV line with too few fields": (
        lambda t, p: train(text(t / "t.csv", "path,label\na.png,x\nb.png\n")),
        "t.csv, line 3: 1 fields where the header has 2",
    ),
    "broken image": (lambda t, p: train(broken_image(t, p)), "class4/3.png"),
    "missing image": (
        lambda t, p: train(text(t / "t.csv", "path,label\n" + "".join(f"{i}.png,{i % 8}\n" for i in range(32)))),
        ".png: no such file; --data.on_error skip leaves out such images",
    ),
    "unknown recipe key": (
        lambda t, p: ["train", str(text(t / "r.yaml", "epochs: 2\nbacth_size: 3\n")), "--out", "run"],
        "r.yaml:2: unknown key bacth_size; did you mean batch_size?",
    ),
    "unknown setting": (lambda t, p: train(p, "--optimizer.rate", "3"), "unknown key optimizer.rate"),
    "wrong type": (lambda t, p: train(p, "--epochs", "soon"), "epochs = soon must be an integer"),
    "impossible value": (lambda t, p: train(p, "--optimizer.lr", "-1"), "optimizer.lr = -1.0 must be a positive"),
    "missing recipe": (lambda t, p: ["train", "none.yaml", "--out", "run"], "cannot read the recipe none.yaml"),
    "unknown backbone": (lambda t, p: train(p, "--model.backbone", "resnet5"), "resnet50"),
    "batch not divisible by m": (
        lambda t, p: train(p, "--batch_size", "10", "--samples_per_class", "4"),
        "batch_size = 10 must be a multiple of samples_per_class = 4",
    ),
    "too few classes for a batch": (lambda t, p: train(p, "--batch_size", "64"), "takes 32 classes"),
    "no coarse classes": (
        lambda t, p: train(p, "--coarse_classes_per_batch", "2"),
        "coarse_column = coarse: coarse_classes_per_batch needs coarse labels in this column, which the table",
    ),
    "one coarse class": (
        lambda t, p: train(coarse_labels(t, p, 1), "--coarse_classes_per_batch", "2", "--batch_size", "4"),
        "there is only one coarse class (kind 0)",
    ),
    "too few coarse classes": (
        lambda t, p: train(coarse_labels(t, p, 2), "--coarse_classes_per_batch", "4"),
        "coarse_classes_per_batch is 4, but there are only 2 coarse classes",
    ),
    "a class of two coarse classes": (
        lambda t, p: train(coarse_labels(t, p, 5), "--coarse_classes_per_batch", "2"),
        "has the coarse labels kind 0 and kind 1; a class has one",
    ),
    "batch not divisible by coarse classes": (
        lambda t, p: train(p, "--coarse_classes_per_batch", "3"),
        "batch_size = 8 must be a multiple of samples_per_class = 2 times coarse_classes_per_batch = 3",
    ),
    "fraction of noise above one": (
        lambda t, p: train(p, "--data.noise.random_labels", "10"),
        "data.noise.random_labels = 10.0 must be from 0 to 1",
    ),
    "dissolving all classes": (
        lambda t, p: ["data", str(p), "--noise.open_set_labels", "1"],
        "a fraction of 1.0 dissolves all training classes (8); take less, so that some stay",
    ),
    "size of clusters that are not asked for": (
        lambda t, p: ["data", str(p), "--noise.open_set_cluster_size", "5"],
        "data.noise.open_set_cluster_size = 5.0 must be left alone unless data.noise.open_set_labels is above 0",
    ),
    "confusions without a fraction": (
        lambda t, p: ["data", str(p), "--noise.confusions", "pairs.csv"],
        "data.noise.confused_labels = 0.0 must be above 0 with data.noise.confusions",
    ),
    "no such list of confusions": (
        lambda t, p: train(p, "--data.noise.confusions", "pairs.csv", "--data.noise.confused_labels", "0.1"),
        "pairs.csv: no such file",
    ),
    "foreign images without a fraction": (
        lambda t, p: train(p, "--data.noise.foreign", str(p)),
        "data.noise.foreign_fraction = 0.0 must be above 0 with data.noise.foreign",
    ),
    "foreign images that are the training images": (
        lambda t, p: ["data", str(p), "--noise.foreign", str(p), "--noise.foreign_fraction", "0.1"],
        "is no foreign image",
    ),
    "too few foreign images": (
        lambda t, p: ["data", str(p), f"--noise.foreign={folder_of(t / 'x', a=2)}", "--noise.foreign_fraction=0.5"],
        "0.5 of 48 training images are 24, but there are only 2 foreign images",
    ),
    "more classes than there are": (
        lambda t, p: ["data", str(p), "--noise.classes", "9"],
        "classes is 9, of 8 training classes",
    ),
    "noise that is no number": (
        lambda t, p: ["data", str(p), "--noise.random_labels", "some"],
        "argument --noise.random_labels: invalid float value: 'some'",
    ),
    "noise without labels": (
        lambda t, p: ["data", str(picture(t / "x" / "1.png").parent), "--noise.random_labels", "0.1"],
        "no column 'label'",
    ),
    "run folder exists": (lambda t, p: train(p, "--out", picture(t / "old" / "a.png").parent), "exists already"),
    "nothing to resume": (lambda t, p: ["train", "--out", "run", "--resume"], "run holds no run to resume"),
    "no such model": (lambda t, p: ["evaluate", str(p), "--model", str(t / "nothing")], "nothing"),
    "images without a model": (lambda t, p: ["evaluate", str(p)], "--model"),
    "no such split": (
        lambda t, p: ["evaluate", str(saved_vectors(t / "v.parquet", np.eye(4))), "--split", "val"],
        "has no rows in the split val",
    ),
    "recall beyond the gallery": (
        lambda t, p: ["evaluate", str(saved_vectors(t / "v.parquet", np.eye(4))), "--recall-at", "9"],
        "recall@9 is impossible with 3 gallery images",
    ),
    "index of another dimension": (
        lambda t, p: ["search", str(saved_index(t / "i", 8)), str(saved_vectors(t / "v.parquet", np.eye(4)))],
        "vectors have 4 dimensions, the index has 8",
    ),
    "index of another model": (
        lambda t, p: _index_then_search_with_another_model(t, p),
        "the index was built with embeddings of the model",
    ),
    "k larger than the gallery": (
        lambda t, p: [*searching(t), "-k", "6"],
        "k = 6 is impossible in an index of 5 images; use 1 to 5",
    ),
    "deleting an unknown id": (lambda t, p: ["index", "delete", str(saved_index(t / "i", 4)), "9"], "no id 9"),
    "no such index": (lambda t, p: ["search", "nothing", str(p)], "nothing"),
    "image of 100,000 x 100,000 pixels": (
        lambda t, p: ["embed", str(huge_image(t / "h.png")), "--model", str(saved_model(t / "m")), "--out", "v.npy"],
        "h.png",
    ),
    "embeddings of an unknown format": (
        lambda t, p: ["embed", str(p), "--model", str(saved_model(t / "m")), "--out", "v.txt"],
        "v.txt",
    ),
    "unknown device": (
        lambda t, p: ["embed", str(p), "--model", str(saved_model(t / "m")), "--out", "v.npy", "--device", "foo"],
        "device foo cannot be used",
    ),
    "unknown reranking": (lambda t, p: ["evaluate", str(p), "--rerank", "magic"], "invalid choice: 'magic'"),
    "another reranking's option": (
        lambda t, p: ["evaluate", str(p), "--rerank", "contextual", "--rerank.k1", "9"],
        "--rerank.k1 is not an option of contextual; its options: k, beta, epsilon",
    ),
    "an option of no reranking": (lambda t, p: ["evaluate", str(p), "--rerank.k", "9"], "give --rerank too"),
    "an unknown option of reranking": (
        lambda t, p: ["evaluate", str(p), "--rerank", "contextual", "--rerank.kk", "9"],
        "unknown argument --rerank.kk",
    ),
    "reranking with no number": (
        lambda t, p: ["evaluate", str(p), "--rerank", "contextual", "--rerank.k", "many"],
        "argument --rerank.k: invalid int value: 'many'",
    ),
    "an impossible reranking": (
        lambda t, p: ["evaluate", str(p), "--rerank", "contextual", "--rerank.beta", "2"],
        "beta = 2.0 must be from 0 to below 1",
    ),
    "reranking more than there are": (
        lambda t, p: ["evaluate", str(saved_vectors(t / "v.parquet", np.eye(4))), "--rerank", "contextual"],
        "k = 16 is too large for a gallery of 4 images; use k <= 4",
    ),
    "no such refiner": (
        lambda t, p: ["evaluate", str(saved_vectors(t / "v.parquet", np.eye(4))), "--refiner", str(t / "nothing")],
        "nothing",
    ),
    "a context of no refiner": (lambda t, p: ["evaluate", str(p), "--context", "gallery"], "give --refiner too"),
    "unknown context": (lambda t, p: ["evaluate", str(p), "--context", "all"], "invalid choice: 'all'"),
    "refiner of another dimension": (
        lambda t, p: ["evaluate", *_refining(t, 8, None)],
        "embeddings have 4 dimensions, the refiner is for 8",
    ),
    "refiner for another model": (
        lambda t, p: ["evaluate", str(p), "--model", str(saved_model(t / "m")), *_refining(t, 16, "abc")[1:]],
        "the refiner was trained for embeddings of the model abc",
    ),
    "index with a refiner of another dimension": (
        lambda t, p: ["index", "build", str(t / "i"), *_refining(t, 8, None)],
        "embeddings have 4 dimensions, the refiner is for 8",
    ),
    "index with a refiner for another model": (
        lambda t, p: ["index", "build", str(t / "i"), str(p), "--model", str(saved_model(t / "m")),
                      *_refining(t, 16, "abc")[1:]],
        "the refiner was trained for embeddings of the model abc",
    ),
    "refined index searched without its refiner": (
        lambda t, p: ["search", str(_refined_index(t)), str(t / "v.parquet")],
        "give that refiner (--refiner ",
    ),
    "refined index searched with another refiner": (
        lambda t, p: ["search", str(_refined_index(t)), str(t / "v.parquet"), "--refiner", str(saved_refiner(t / "s"))],
        "use that refiner, or build the index again",
    ),
    "refined index added to without its refiner": (
        lambda t, p: ["index", "add", str(_refined_index(t)), str(t / "v.parquet")],
        "give that refiner (--refiner ",
    ),
    "plain index searched with a refiner": (
        lambda t, p: [*searching(t), *_refining(t, 4, None)[1:]],
        "the index was built without a refiner; leave it out, or build the index again with it",
    ),
    "refining nothing": (
        lambda t, p: refine(),
        "embeddings = None must be a file of embeddings, unless run is given",
    ),
    "refining both": (
        lambda t, p: refine("--embeddings", text(t / "e.parquet", ""), "--run", "."),
        "run = . must be left out where embeddings = ",
    ),
    "refining a missing file": (lambda t, p: refine("--embeddings", t / "e.parquet"), "e.parquet: no such file"),
    "refining without labels": (
        lambda t, p: refine("--embeddings", unlabeled(t / "e.parquet")),
        "the embeddings have no column label",
    ),
    "refining one class": (
        lambda t, p: refine("--embeddings", labeled(t / "e.parquet", a=4, x=3)),
        "only one class ('a', 4 images)",
    ),
    "refining a split val alone": (
        lambda t, p: refine("--embeddings", labeled(t / "e.parquet", x=4, y=3)),
        "no embeddings are in the split train; the splits are val",
    ),
    "refining with one validation class": (
        lambda t, p: refine("--embeddings", labeled(t / "e.parquet", a=4, b=4, x=4)),
        "the split val has one class, whose images would always be found",
    ),
    "refining with classes of both splits": (
        lambda t, p: refine("--embeddings", shared(t / "e.parquet")),
        "class x is in train and val; a refiner is validated on classes not trained on",
    ),
    "refining the run of a refiner": (
        lambda t, p: refine("--run", refiner_run(t / "r")),
        "is the run of a refiner; give that of an embedder",
    ),
    "evaluating the run of a refiner": (
        lambda t, p: ["evaluate", str(refiner_run(t / "r"))],
        "is the run of a refiner; give it with --refiner",
    ),
    "going on with the run of a refiner by train": (
        lambda t, p: ["train", "--resume", "--out", str(refiner_run(t / "r"))],
        "is the run of a refiner; resume it with vicinal refine",
    ),
    "a refiner that is not finished": (
        lambda t, p: [
            *["evaluate", str(saved_vectors(t / "v.parquet", np.eye(4)))],
            *["--refiner", str(refiner_run(t / "r"))],
        ],
        "has no finished refiner: its run is not finished, or did not improve the scores; continue it with:",
    ),
    "refining with validation classes of one image": (
        lambda t, p: refine("--embeddings", labeled(t / "e.parquet", a=4, b=4, x=1, y=1)),
        "the split val has no class with two images",
    ),
    "refining with too few classes for a batch": (
        lambda t, p: refine("--embeddings", labeled(t / "e.parquet", a=4, b=4, x=2, y=2), "--batch_size", "8"),
        "that takes 4 classes",
    ),
    "too few classes to take some for validation": (
        lambda t, p: refine("--embeddings", labeled(t / "e.parquet", a=4, b=4)),
        "a fraction of 0.2 of 2 classes leaves val without any",
    ),
    "unknown setting of refining": (
        lambda t, p: refine("--embeddings", "e.parquet", "--wings", "3"),
        "unknown key wings; `vicinal refine --help_all` lists all keys",
    ),
    "unknown key in a refiner's recipe": (
        lambda t, p: ["refine", str(text(t / "r.yaml", "run: .\nrefiner:\n  depht: 3\n")), "--out", "run"],
        "r.yaml:3: unknown key refiner.depht; did you mean refiner.depth?",
    ),
    "impossible value in a refiner's recipe": (
        lambda t, p: ["refine", str(text(t / "r.yaml", NO_NEIGHBORS)), "--out", "run"],
        "r.yaml:3: augmentation.neighbor_dropout = 1.0 must be from 0 to below 1",
    ),
    "impossible refiner in a recipe": (
        lambda t, p: ["refine", str(text(t / "r.yaml", "run: .\nrefiner:\n  depth: 0\n")), "--out", "run"],
        "r.yaml:3: refiner.depth = 0 must be at least 1",
    ),
    "training a refiner without neighbors": (
        lambda t, p: refine("--embeddings", text(t / "e.parquet", ""), "--refiner.neighbors", "0"),
        "refiner.neighbors = 0 must be at least 1",
    ),
    "heads that do not divide the dimension": (
        lambda t, p: refine("--embeddings", labeled(t / "e.parquet", a=4, b=4, x=2, y=2), "--refiner.num_heads", "3"),
        "refiner.num_heads = 3 must divide dim = 4",
    ),
    "impossible refining": (
        lambda t, p: refine("--embeddings", text(t / "e.npy", ""), "--val_fraction", "1"),
        "val_fraction = 1.0 must",
    ),
    "an embedder without a run": (
        lambda t, p: refine("--embeddings", text(t / "e.parquet", ""), "--embedder_fraction", "0.5"),
        "embedder_fraction = 0.5 must be 0 without run",
    ),
    "folder of a refiner's run exists": (
        lambda t, p: refine("--embeddings", text(t / "e.npy", ""), "--out", picture(t / "old" / "a.png").parent),
        "exists already",
    ),
    "no refining to resume": (lambda t, p: ["refine", "--out", "run", "--resume"], "run holds no run to resume"),
    "refining no run": (lambda t, p: refine("--run", p), "is not the folder of a training run: recipe.yaml is missing"),
    "refining a run that is not finished": (
        lambda t, p: refine("--run", run_without_model(t, p)),
        "has no finished model; continue the run with: vicinal train --out",
    ),
    "workers below none": (
        lambda t, p: ["embed", str(p), "--out", "v.npy", "--num_workers", "-1"],
        "num_workers = -1 must not be negative",
    ),
    "seed below none": (lambda t, p: ["data", str(p), "--seed", "-1"], "-1 is not an integer from 0 up"),
    "unknown verb": (lambda t, p: ["serach"], "invalid choice: 'serach'"),
    "unknown argument": (lambda t, p: ["data", str(p), "--sead", "3"], "unknown argument --sead, did you mean --seed?"),
    "fractions that are not a mapping": (
        lambda t, p: ["data", str(p), "--fractions", "half"],
        "argument --fractions: half must be a mapping, each value a number",
    ),
    "fractions that are not numbers": (
        lambda t, p: ["data", str(p), "--fractions", "{train: half}"],
        "argument --fractions: {train: half} must be a mapping, each value a number",
    ),
    "a flag that is nearly one": (lambda t, p: ["data", str(p), "--fraction", "1"], "did you mean --fractions?"),
}  # fmt: skip


NO_NEIGHBORS = "run: .\naugmentation:\n  neighbor_dropout: 1\n"
RECALL_AT_8 = ["--validation.metric", "recall@8"]
VALIDATE_E = "{train: [a, b, c, d], val: [e]}"


def _index_then_search_with_another_model(folder: Path, photos: Path) -> list[str]:
    first, second = saved_model(folder / "m1"), saved_model(folder / "m2")
    assert main(["index", "build", str(folder / "i"), str(photos), "--model", str(first)]) == 0
    return ["search", str(folder / "i"), str(photos / "class0"), "--model", str(second)]


def _refining(folder: Path, dim: int, model: str | None) -> list[str]:
    """Four vectors of four dimensions, and a refiner for them or for others."""
    return [
        str(saved_vectors(folder / "v.parquet", np.eye(4))),
        "--refiner",
        str(saved_refiner(folder / "r", dim, model)),
    ]


def _refined_index(folder: Path) -> Path:
    assert main(["index", "build", str(folder / "i"), *_refining(folder, 4, None)]) == 0
    return folder / "i"


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_one_clear_line(
    name: str, tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make, message = CASES[name]
    arguments = make(tmp_path, photos)
    capsys.readouterr()
    try:
        status = main(arguments)
    except SystemExit as stop:
        status = stop.code
    captured = capsys.readouterr()
    errors = [line for line in captured.err.splitlines() if ": error: " in line]
    assert status == 2
    assert len(errors) == 1
    assert message in errors[0]
    assert captured.err.splitlines()[-1] == errors[0]
    assert captured.out == ""
    for left in ("run", "v.npy", "v.txt"):
        assert not (tmp_path / left).exists()


def test_a_class_in_two_splits_is_warned_of_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = text(tmp_path / "t.csv", "path,label,split\na.png,cat,train\nb.png,cat,test\nc.png,dog,train\n")
    assert main(["data", str(table)]) == 0
    warning = capsys.readouterr().err
    assert "warning" in warning
    assert "cat" in warning
    assert len(warning.splitlines()) == 1


def test_a_class_with_one_image_is_warned_of_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = folder_of(tmp_path / "x", a=4, b=4, c=4, d=4, lonely=1)
    status = main(train(source, "--data.fractions", "{train: 1.0}", "--epochs", "1", "--out", tmp_path / "run"))
    errors = capsys.readouterr().err
    assert status == 0
    assert "class 'lonely' has one image" in errors


def test_a_full_disk_is_one_line_and_leaves_what_was_there(photos: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands in for the full disk: the same calls fail in the same way."""
    model = saved_model(tmp_path / "m")
    for arguments in (
        train(photos, "--out", tmp_path / "run"),
        ["embed", str(photos), "--model", str(model), "--out", str(tmp_path / "v.npy")],
        ["index", "build", str(tmp_path / "i"), str(photos), "--model", str(model)],
    ):
        received, sent = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("spawn").Process(target=_run_on_a_full_disk, args=(arguments, sent))
        process.start()
        status, errors = received.recv()
        process.join()
        assert status == 1, errors
        assert "error: " in errors.splitlines()[-1]
        assert "File too large" in errors.splitlines()[-1]
    assert not (tmp_path / "v.npy").exists()
    assert not any(path.suffix in (".tmp", ".old") for path in tmp_path.rglob("*"))


def _run_on_a_full_disk(arguments: list[str], results: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        status = main(arguments)
    results.send((status, errors.getvalue()))
