"""Lets processes that tests start import the tests too."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parent.parent

sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of eight classes with six little pictures each: a color a class, and noise."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for label in range(8):
        color = rng.integers(40, 216, 3)
        (folder / f"class{label}").mkdir()
        for number in range(6):
            pixels = np.clip(color + rng.normal(0, 25, (20, 24, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"class{label}" / f"{number}.png")
    return folder


@pytest.fixture
def folder(tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a test, with photos of the names that the documents use."""
    shutil.copytree(photos, tmp_path / "photos")
    (tmp_path / "photos" / "class0").rename(tmp_path / "photos" / "owl")
    (tmp_path / "photos" / "owl" / "1.png").rename(tmp_path / "photos" / "owl" / "1.jpg")
    monkeypatch.chdir(tmp_path)
    return tmp_path


SMALL = [
    "--model.backbone=test_resnet",
    "--model.pretrained=false",
    "--model.dim=16",
    "--transform.size=16",
    "--batch_size=8",
    "--samples_per_class=2",
    "--epochs=2",
    "--optimizer.lr=0.001",
    "--log_every=1",
    "--data.cache=true",
    "--accelerator=cpu",
]


def metrics_in(results: dict[str, Any], stage: str = "plain", model: str | None = None) -> dict[str, float]:
    """The metrics over all queries in the JSON that `vicinal evaluate` prints, by their full names."""
    return {
        row["metric"] if row["label_level"] == "label" else f"{row['label_level']}/{row['metric']}": row["value"]
        for row in results["results"]
        if row["stage"] == stage and row["group"] is None and model in (None, row["model"])
    }


def output(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What the command prints; it must succeed."""
    from vicinal.cli.main import main

    capsys.readouterr()
    status = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    return captured.out


@pytest.fixture
def small(photos: Path) -> list[str]:
    """Settings of a training run that takes a second."""
    return [f"--data.source={photos}", *SMALL]
