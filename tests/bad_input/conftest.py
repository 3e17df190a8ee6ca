"""Sound files, and the check of all these tests: a mistake is answered by one line, and leaves nothing behind."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from vicinal.cli.main import main
from vicinal.data import ImageTransform, Table, save_embeddings
from vicinal.models import ContextRefiner, Embedder

JARGON = re.compile(r"True|False|9223372036854775807|_column=|\w+\(\)|Traceback|Namespace|Union|subtypes")


@pytest.fixture(scope="session")
def good(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos, two models, a whitening, refiners, embeddings, and indexes built with them."""
    folder = tmp_path_factory.mktemp("good")
    (folder / "photos").symlink_to(photos)
    torch.manual_seed(0)
    models = [Embedder("test_resnet", dim=8, pretrained=False, transform=ImageTransform(size=16)) for _ in range(2)]
    for name, model in zip(("m1", "m2"), models, strict=True):
        model.save_pretrained(folder / name)
    for name, dim, fingerprint in (
        ("r", 8, models[0].fingerprint()),
        ("r2", 8, models[0].fingerprint()),
        ("r4", 4, None),
    ):
        refiner = ContextRefiner(dim, num_heads=2, attention_start="random")
        refiner.model_fingerprint = fingerprint
        refiner.save_pretrained(folder / name)
    vectors = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    save_embeddings(folder / "v.parquet", vectors, Table(pd.DataFrame({"label": list("aabbccdd")})))
    for words in (
        "embed ~/photos --model ~/m1 --out ~/e.parquet",
        "whiten ~/e.parquet --out ~/w.safetensors --dim 4",
        "index build ~/plain ~/photos --model ~/m1",
        "index build ~/whitened ~/photos --model ~/m1 --whitening ~/w.safetensors",
        "index build ~/refined ~/photos --model ~/m1 --refiner ~/r",
        "index build ~/scaled ~/photos --model ~/m1 --scales 1 0.5",
    ):
        assert main(shlex.split(words.replace("~", str(folder)))) == 0
    return folder


@pytest.fixture
def place(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


Files = dict[str, Any]
Refused = Callable[..., None]


@pytest.fixture
def refused(good: Path, place: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Check that a command exits with status 2 and one line; ``~`` is the folder of sound files."""

    def check(words: str, message: str, files: Files | None = None) -> None:
        write(place, files or {})
        before, sound = contents(place), contents(good)
        capsys.readouterr()
        status = exit_status(shlex.split(words.replace("~", str(good))))
        captured = capsys.readouterr()
        errors = [line for line in captured.err.splitlines() if ": error: " in line]
        assert status == 2, captured.err
        assert errors == captured.err.splitlines()[-1:], captured.err
        assert message.replace("~", str(good)) in errors[0]
        assert not JARGON.search(errors[0].replace(message, ""))
        assert captured.out == ""
        assert contents(place) == before
        assert sound.items() <= contents(good).items()

    return check


def write(folder: Path, files: Files) -> None:
    """Write files: text, bytes, or a function that writes to a path."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            content(path)
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())


def contents(folder: Path) -> dict[Path, tuple[int, int]]:
    stats = {path: path.lstat() for path in folder.rglob("*") if not path.is_dir()}
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in stats.items()}


def exit_status(words: list[str]) -> object:
    try:
        return main(words)
    except SystemExit as stopped:
        return stopped.code
