"""What goes wrong with `vicinal index` and `vicinal search` on a first day, and the line that answers it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from vicinal.cli.main import main
from vicinal.data import ImageTransform, Table, save_embeddings
from vicinal.models import ContextRefiner, Embedder
from vicinal.retrieval import Index
from vicinal.utils.errors import InputError


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos, two models, a whitening, a refiner, and indexes built with them."""
    folder = tmp_path_factory.mktemp("first_day")
    for label in "ab":
        (folder / "photos" / label).mkdir(parents=True)
        for number in range(4):
            pixels = np.random.default_rng(ord(label) + number).integers(0, 255, (20, 20, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / label / f"{number}.png")
    torch.manual_seed(0)
    models = [Embedder("test_resnet", dim=8, pretrained=False, transform=ImageTransform(size=16)) for _ in range(2)]
    for name, model in zip(("m1", "m2"), models, strict=True):
        model.save_pretrained(folder / name)
    refiner = ContextRefiner(8, num_heads=2)
    refiner.model_fingerprint = models[0].fingerprint()
    refiner.save_pretrained(folder / "r")
    embed = [f"{folder}/photos", "--model", f"{folder}/m1"]
    for words in (
        ["embed", f"{folder}/photos", "--model", f"{folder}/m1", "--out", f"{folder}/e.parquet"],
        ["whiten", f"{folder}/e.parquet", "--out", f"{folder}/w.safetensors", "--dim", "4"],
        ["index", "build", f"{folder}/plain", *embed],
        ["index", "build", f"{folder}/whitened", *embed, "--whitening", f"{folder}/w.safetensors"],
        ["index", "build", f"{folder}/refined", *embed, "--refiner", f"{folder}/r"],
        ["index", "build", f"{folder}/scaled", *embed, "--scales", "1", "0.5"],
    ):
        assert main(words) == 0
    return folder


def search(index: str, *flags: str, query: str = "photos/a/0.png") -> list[str]:
    return ["search", "{0}/" + index, "{0}/" + query, "-k", "2", *flags]


M1, M2, W, R = (
    ("--model", "{0}/m1"),
    ("--model", "{0}/m2"),
    ("--whitening", "{0}/w.safetensors"),
    ("--refiner", "{0}/r"),
)

CASES: list[tuple[str, str, list[str], str]] = [
    ("model", "another", search("plain", *M2), "; give --model {0}/m1, or build the index again"),
    ("model", "another, with whitening", search("whitened", *M2, *W), "; give --model {0}/m1, or build"),
    ("model", "where both are", search("plain", *M2), "(--model {0}/m1), not of"),
    (
        "model",
        "none",
        ["search", "{0}/plain", "{0}/e.parquet", "{0}/photos/a/0.png", "-k", "2"],
        "a/0.png holds images; say which model embeds them with --model",
    ),
    ("model", "another, to add", ["index", "add", "{0}/plain", "{0}/photos", *M2], "; give --model {0}/m1, or build"),
    ("whitening", "missing", search("whitened", *M1), "; give --whitening {0}/w.safetensors, or build the index again"),
    ("whitening", "too many", search("plain", *M1, *W), "; leave out --whitening, or build the index again"),
    (
        "whitening",
        "missing in stored embeddings",
        search("whitened", query="e.parquet"),
        "; embed the images with --model {0}/m1 --whitening {0}/w.safetensors, or build the index again",
    ),
    ("scales", "missing", search("scaled", *M1), "; give --scales 1 0.5, or build the index again"),
    ("scales", "others", search("scaled", *M1, "--scales", "1"), "; give --scales 1 0.5, or build the index again"),
    ("refiner", "missing", search("refined", *M1), "; give that refiner (--refiner {0}/r)"),
    ("refiner", "too many", search("plain", *M1, *R), "the index was built without a refiner; leave it out, or build"),
    ("number", "delete beyond 64 bits", ["index", "delete", "{0}/plain", "9" * 30], f"no id {'9' * 30}; it was"),
    ("number", "delete 2**63", ["index", "delete", "{0}/plain", "0", str(2**63)], f"the index has no id {2**63}; it"),
    ("number", "delete half an image", ["index", "delete", "{0}/plain", "0.5"], "the index has no image 0.5, nor"),
    ("number", "half a match", search("plain", *M1, "-k", "2.5"), "argument -k: 2.5 is not an integer from 1 up"),
    ("number", "timeout", ["index", "list", "{0}/plain", "--timeout", "soon"], "--timeout: soon is not an integer"),
    ("query", "none", ["search", "{0}/plain"], "the following arguments are required: queries"),
    ("query", "no such file", search("plain", *M1, query="owl.png"), "owl.png: no such file"),
    ("index", "folder of photos", ["search", "{0}/photos", "{0}/e.parquet"], "photos is not an index: it has no"),
]  # fmt: skip


def stop(words: list[str]) -> int:
    try:
        return main(words)
    except SystemExit as error:  # of the parser
        return int(str(error.code))


@pytest.mark.parametrize(("kind", "case", "words", "expected"), CASES, ids=[f"{case[0]}: {case[1]}" for case in CASES])
def test_a_mistake_is_one_line(kind: str, case: str, words: list[str], expected: str, made: Path, capsys) -> None:
    before = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert stop([word.format(made) for word in words]) == 2
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 1
    assert expected.format(made) in captured.err
    assert captured.out == ""
    assert {path: path.read_bytes() for path in made.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda index: index.search(np.eye(4), 2.5), "k = 2.5 is impossible in an index of 4 images"),
        (lambda index: index.search(np.eye(4), True), "k = True is impossible"),
        (lambda index: index.search([], 1), r"query embeddings have shape \[0\]; expected \[rows, dimensions\]"),
        (lambda index: index.delete([1.5]), "id 1.5 is not an integer"),
        (lambda index: index.delete(["1"]), "id '1' is not an integer"),
        (lambda index: index.delete([True]), "id True is not an integer"),
        (lambda index: index.delete([2**70]), f"the index has no id {2**70}"),
        (lambda index: index.delete([-(2**70)]), f"the index has no id -{2**70}"),
        (lambda index: index.delete(np.array([2**63], np.uint64)), f"the index has no id {2**63}"),
    ],
)
def test_a_mistake_in_python(call: Callable[[Index], object], expected: str) -> None:
    index = Index.build(np.eye(4), Table(pd.DataFrame(index=range(4))))
    with pytest.raises(InputError, match=expected):
        call(index)
    assert len(index) == 4


def test_no_queries_find_nothing() -> None:
    index = Index.build(np.eye(4), Table(pd.DataFrame(index=range(4))))
    assert index.search(np.empty((0, 4), np.float32), 2).ids.shape == (0, 2)


def test_the_same_flags_find_images(made: Path, capsys) -> None:
    for index, flags in (("plain", M1), ("whitened", (*M1, *W)), ("refined", (*M1, *R))):
        capsys.readouterr()
        assert main([word.format(made) for word in search(index, *flags)]) == 0
        assert re.search(r"^   1  1\.0000  a  .*photos/a/0\.png$", capsys.readouterr().out, re.MULTILINE)


def test_an_index_shows_what_it_was_built_with(made: Path, capsys) -> None:
    assert main(["index", "list", f"{made}/whitened", "--facts"]) == 0
    shown = capsys.readouterr().out
    assert f"model                {made}/m1" in shown
    assert f"whitening            {made}/w.safetensors" in shown


def test_unreadable_images_of_a_folder_are_left_out(made: Path, tmp_path: Path, capsys) -> None:
    for number in range(3):
        save = Image.new("RGB", (20, 20), (9 * number, 0, 0)).save
        save(tmp_path / f"{number}.png")
    (tmp_path / "broken.png").write_bytes(b"not an image")
    model = ["--model", f"{made}/m1"]
    left_out = "left out 1 of 4 images that cannot be read"
    for words, message in (
        (["index", "build", f"{tmp_path}/i", str(tmp_path), *model], left_out),
        (["index", "add", f"{tmp_path}/i", str(tmp_path), *model], "left out: none of the 1 images can be read"),
        (["search", f"{tmp_path}/i", str(tmp_path), *model, "-k", "1"], left_out),
    ):
        assert main(words) == 0
        assert message in capsys.readouterr().err
    assert len(Index.load(tmp_path / "i")) == 3
    assert main(["index", "add", f"{tmp_path}/i", str(tmp_path), *model, "--on_error", "raise"]) == 2
    assert len(Index.load(tmp_path / "i")) == 3


def test_ivfpq_can_be_evaluated_and_reported(tmp_path: Path, monkeypatch, capsys) -> None:
    from vicinal.retrieval.index.engines import faiss_engine

    monkeypatch.setattr(faiss_engine, "IVFPQ_MIN_VECTORS", 400)
    vectors = np.random.default_rng(0).standard_normal((400, 8)).astype(np.float32)
    save_embeddings(tmp_path / "v.parquet", vectors, Table(pd.DataFrame({"label": [n % 20 for n in range(400)]})))
    assert main(["index", "build", f"{tmp_path}/i", f"{tmp_path}/v.parquet", "--kind", "ivfpq"]) == 0
    assert main(["index", "delete", f"{tmp_path}/i", "3", "4"]) == 0
    assert main(["evaluate", f"{tmp_path}/i"]) == 0
    assert main(["report", f"{tmp_path}/i", "--out", f"{tmp_path}/page"]) == 0
    assert "398" in capsys.readouterr().out
