"""Lets processes that tests start import the tests too."""

import gc
import os
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from vicinal.utils.memory import available_memory

ROOT = Path(__file__).parent.parent

sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRITON_INTERPRET"] = "1"  # runs the kernels of GPUs on the CPU; read when Triton is first imported


def memory_folder(free: int = 2**30) -> str | None:
    """A folder in memory with so many bytes free, where nothing waits for a disk; None: the usual one."""
    folder = "/dev/shm"  # its size is no promise that there is so much memory
    has_room = os.access(folder, os.W_OK) and min(shutil.disk_usage(folder).free, available_memory()) > free
    return folder if has_room else None


if in_memory := memory_folder(6 * 2**30):  # a commit of SQLite takes 20 ms on a disk; all tests together write 2 GB
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", in_memory)


def pytest_sessionstart() -> None:
    """Take Ctrl-C, which a background job of a shell ignores, and so would all that tests start; collect quickly."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # which would walk over all of the thousands of tests every time


def pytest_collection_finish() -> None:
    """Keep the collected tests out of every later collection of garbage, and collect it again."""
    gc.collect()
    gc.freeze()
    gc.enable()


def draw_photos(folder: Path, num_classes: int, images_per_class: int) -> Path:
    rng = np.random.default_rng(0)
    for label in range(num_classes):
        color = rng.integers(40, 216, 3)
        (folder / f"class{label}").mkdir(parents=True)
        for number in range(images_per_class):
            pixels = np.clip(color + rng.normal(0, 25, (20, 24, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"class{label}" / f"{number}.png")
    return folder


def draw_noise(folder: Path, labels: str) -> pd.DataFrame:
    """Draw pictures of noise, one for each letter, and return the table of their names and labels."""
    rng = np.random.default_rng(0)
    paths = [f"{row}.png" for row in range(len(labels))]
    for path in paths:
        Image.fromarray(rng.integers(0, 256, (15, 18, 3), dtype=np.uint8)).save(folder / path)
    return pd.DataFrame({"path": paths, "label": list(labels)})


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of eight classes with six little pictures each."""
    return draw_photos(tmp_path_factory.mktemp("photos"), 8, 6)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a test, with photos as the documents say: ten classes of eight images."""
    draw_photos(tmp_path / "photos", 10, 8)
    (tmp_path / "photos" / "class0").rename(tmp_path / "photos" / "owl")
    (tmp_path / "photos" / "owl" / "1.png").rename(tmp_path / "photos" / "owl" / "1.jpg")
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Settings to train within a second without a network and a GPU; batches are left as they are.
QUICK = [
    "--model.backbone=test_resnet",
    "--model.pretrained=false",
    "--model.dim=16",
    "--transform.size=16",
    "--epochs=2",
    "--accelerator=cpu",
    "--data.num_workers=0",
]
SMALL = [
    *QUICK,
    "--batch_size=8",
    "--samples_per_class=2",
    "--optimizer.lr=0.001",
    "--log_every=1",
    "--data.cache=true",
]


def free_port() -> int:
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        return each.getsockname()[1]


def metrics_in(results: dict[str, Any], stage: str = "plain", model: str | None = None) -> dict[str, float]:
    """The metrics over all queries in the JSON that `vicinal evaluate` prints, by their full names."""
    return {
        row["metric"] if row["label_level"] == "label" else f"{row['label_level']}/{row['metric']}": row["value"]
        for row in results["results"]
        if row["stage"] == stage and row["group"] is None and model in (None, row["model"])
    }


def output(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The output of the command, which must succeed."""
    from vicinal.cli.main import main

    capsys.readouterr()
    status = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    return captured.out


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What the command says, which must exit with status 2."""
    from vicinal.cli.main import main

    capsys.readouterr()
    try:
        status: object = main([str(argument) for argument in arguments])
    except SystemExit as stopped:
        status = stopped.code
    captured = capsys.readouterr()
    assert (status, captured.out) == (2, ""), captured.err
    return captured.err.strip()


@pytest.fixture(scope="session")
def old_and_new(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The folders of two models of other dimensions, for upgrades."""
    from vicinal.data import ImageTransform
    from vicinal.models import Embedder

    folder = tmp_path_factory.mktemp("models")
    for name, dim in (("old", 8), ("new", 12)):
        model = Embedder("test_resnet", dim=dim, pretrained=False, transform=ImageTransform(size=32))
        model.save_pretrained(folder / name)
    return [str(folder / "old"), str(folder / "new")]


@pytest.fixture(scope="session", autouse=True)
def _curves_are_not_drawn() -> Iterator[None]:
    """Leave an empty file in place of each run's learning curves, which cost a fourth of a tiny run."""

    def touch(trainer: Any) -> None:
        trainer.log.close()
        trainer.run.curves.touch()

    with pytest.MonkeyPatch.context() as patch:
        if module := sys.modules.get("vicinal.training.base_trainer"):  # else no test trains here
            patch.setattr(module.BaseTrainer, "drawn_curves", module.BaseTrainer._write_curves, raising=False)
            patch.setattr(module.BaseTrainer, "_write_curves", touch)
        yield


@pytest.fixture
def drawn_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    from vicinal.training.base_trainer import BaseTrainer

    monkeypatch.setattr(BaseTrainer, "_write_curves", getattr(BaseTrainer, "drawn_curves", BaseTrainer._write_curves))


@pytest.fixture
def small(photos: Path) -> list[str]:
    """Settings of a training run that takes a second."""
    return [f"--data.source={photos}", *SMALL]


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks of timm have the same random weights each time instead of downloaded ones."""
    import timm
    import torch

    create = timm.create_model

    def create_model(name: str, pretrained: bool = False, **arguments: object) -> torch.nn.Module:
        torch.manual_seed(0)
        return create(name, **arguments)

    monkeypatch.setattr(timm, "create_model", create_model)
    monkeypatch.setattr("vicinal.models.downloads.is_downloaded", lambda name: True)


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    import torch

    torch.compiler.reset()
    yield
    torch.compiler.reset()
