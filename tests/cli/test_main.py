"""The command as a whole: help, errors, and which libraries each verb loads."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.conftest import ROOT, SMALL
from vicinal.cli.main import VERBS, main
from vicinal.data import Table, save_embeddings
from vicinal.retrieval import Index

HEAVY = (
    "torch", "timm", "torchvision", "lightning", "tensorboard", "matplotlib", "faiss", "sklearn", "scipy", "numba",
    "pandas", "numpy", "pyarrow", "PIL", "jsonargparse", "rich", "huggingface_hub",
)  # fmt: skip
# Runs commands in one interpreter, and prints the heavy modules that are loaded after each.
PROGRAM = """
import contextlib, json, sys
heavy, commands = json.loads(sys.argv[1])
from vicinal.cli.main import main
for words in commands:
    with contextlib.suppress(SystemExit):
        main(words)
    print("LOADED", json.dumps([name for name in heavy if name in sys.modules]))
"""


def loaded_after(*commands: Sequence[object]) -> list[set[str]]:
    """The heavy modules that are loaded after each of these commands, run in turn in a fresh interpreter."""
    given = json.dumps([HEAVY, [[str(word) for word in words] for words in commands]])
    command = [sys.executable, "-c", PROGRAM, given]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    lines = [line.removeprefix("LOADED ") for line in result.stdout.splitlines() if line.startswith("LOADED ")]
    assert len(lines) == len(commands), result.stderr
    return [{*json.loads(line)} for line in lines]


@pytest.mark.parametrize("verb", [verb.__name__ for verb in VERBS])
def test_help_explains_every_verb_and_flag(verb: str, capsys) -> None:
    with contextlib.suppress(SystemExit):
        main([verb, "--help"])
    text = capsys.readouterr().out
    assert f"usage: vicinal {verb}" in text
    assert len(text.splitlines()) > 8


def test_help_of_the_command_and_version(capsys) -> None:
    from vicinal import __version__

    for words in ([], ["--help"]):
        with contextlib.suppress(SystemExit):
            assert main(words) == 0
        text = capsys.readouterr().out
        assert "vicinal search gallery picture.jpg" in text
        assert all(f"    {verb.__name__} " in text for verb in VERBS)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"


def test_help_typos_and_missing_files_load_nothing_heavy() -> None:
    missing = [
        ["data", "nowhere"],
        ["evaluate", "none.parquet"],
        ["evaluate", "--embeddings", "none.npy", "--labels", "none.csv"],
        ["report", "none.parquet"],
        ["embed", "none", "--out", "v.npy"],
        ["whiten", "none", "--out", "w.safetensors"],
        ["index", "none"],
        ["index", "i", "--source", "none"],
        ["search", "none", "picture.jpg"],
    ]
    verbs = [verb.__name__ for verb in VERBS]
    flags = [[], ["--help"], ["--version"], ["serach"], *([verb, "--help"] for verb in verbs)]
    typos = [[verb, "--tpyo"] for verb in verbs if verb not in ("train", "refine")]
    recipes = [
        ["train"],
        ["train", "none.yaml", "--out", "run"],
        ["train", "--data.source", "nowhere", "--out", "run"],
        ["train", "--data.souce", "photos", "--out", "run"],
        ["refine", "--embeddings", "none.parquet", "--out", "run"],
        ["refine", "--embedings", "none.parquet", "--out", "run"],
    ]
    commands = [*flags, *typos, *missing, *recipes]
    for words, modules in zip(commands, loaded_after(*commands), strict=True):
        assert modules <= ({"jsonargparse"} if words in recipes else set()), words


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors")
    values = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
    table = Table(pd.DataFrame({"label": list("aabbccddeeff"), "path": [f"{i}.png" for i in range(12)]}))
    save_embeddings(folder / "v.parquet", values, table)
    Index.build(values, table).save(folder / "index")
    return folder


def test_verbs_on_tables_and_vectors_load_no_model_and_no_training(vectors: Path, photos: Path) -> None:
    data, evaluate, search = loaded_after(
        ["data", photos],
        ["evaluate", vectors / "v.parquet"],
        ["search", vectors / "index", vectors / "v.parquet", "-k", "3"],
    )
    assert "pandas" in data
    assert not data & {"torch", "numba", "scipy"}
    assert "torch" in evaluate - {"faiss"}
    assert "faiss" in search
    for modules in (data, evaluate, search):
        assert not modules & {"timm", "torchvision", "lightning", "tensorboard", "matplotlib", "sklearn"}
    assert "faiss" not in evaluate


def test_verbs_on_images_load_no_training(run: Path, photos: Path, tmp_path: Path) -> None:
    folder, picture, model = tmp_path / "i", photos / "class0" / "0.png", ["--model", run]
    embed, whiten, index, search = loaded_after(
        ["embed", picture, *model, "--out", tmp_path / "v.npy"],
        ["whiten", run, "--out", tmp_path / "w.safetensors"],
        ["index", folder, "--source", photos / "class0", *model],
        ["search", folder, picture, *model, "-k", "3"],
    )
    for modules in (embed, whiten, index, search):
        assert {"torch", "timm"} <= modules
        assert not modules & {"lightning", "tensorboard", "matplotlib", "sklearn", "numba"}
    assert "faiss" not in whiten


def test_training_loads_no_index(photos: Path, tmp_path: Path) -> None:
    (modules,) = loaded_after(["train", "--data.source", photos, *SMALL, "--epochs=1", "--out", tmp_path / "run"])
    assert {"torch", "timm", "lightning", "tensorboard"} <= modules
    assert not modules & {"faiss", "sklearn"}
