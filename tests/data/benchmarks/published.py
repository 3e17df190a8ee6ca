"""Tiny benchmarks in the layout of the published files, and a way to accept how small they are.

`write_NAME(root)` writes the benchmark NAME into the folder `root`, as if its archive had been unpacked there. Unless
the format says otherwise, six classes are for training and four for testing, with five images each, so that a model can
be trained on them. `accept_small(monkeypatch, NAME)` makes its reader accept their numbers of images and classes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vicinal.data.benchmarks.completeness import COUNTS

TRAIN, TEST, IMAGES = 6, 4, 5
"""Classes for training, classes for testing, images per class."""

SMALL = {"train": (TRAIN * IMAGES, TRAIN), "test": (TEST * IMAGES, TEST)}
"""The numbers of images and classes of the tiny benchmarks, in the form of `COUNTS`."""


def accept_small(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Replace the published numbers of the benchmarks by those of the tiny ones."""
    for name in names:
        monkeypatch.setitem(COUNTS, name, SMALL)


def write_image(path: Path, label: object, size: tuple[int, int] = (24, 20)) -> None:
    """Write a picture in the color of its class, with noise that depends on its name only."""
    path.parent.mkdir(parents=True, exist_ok=True)
    color = np.random.default_rng(zlib.crc32(str(label).encode())).integers(40, 216, 3)
    noise = np.random.default_rng(zlib.crc32(path.name.encode())).normal(0, 20, (size[1], size[0], 3))
    Image.fromarray(np.clip(color + noise, 0, 255).astype(np.uint8)).save(path)


def write_lines(path: Path, *lines: str) -> None:
    """Write a text file of lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_cub(root: Path) -> None:
    """`CUB_200_2011/`: the classes 1 to 6 and 101 to 104, some files of macOS, and the split that is not to be used."""
    folder = root / "CUB_200_2011"
    classes = {number: f"{number:03d}.Bird_{number}" for number in (*range(1, TRAIN + 1), *range(101, 101 + TEST))}
    images = [(number, f"{name}/Bird_{number}_{i:04d}.jpg") for number, name in classes.items() for i in range(IMAGES)]
    for number, path in images:
        write_image(folder / "images" / path, number)
        write_lines(folder / "images" / path.replace("/", "/._"), "no image")
    rows = list(enumerate(images, 1))
    write_lines(folder / "classes.txt", *(f"{number} {name}" for number, name in classes.items()))
    write_lines(folder / "images.txt", *(f"{i} {path}" for i, (_, path) in rows))
    write_lines(folder / "image_class_labels.txt", *(f"{i} {number}" for i, (number, _) in rows))
    write_lines(folder / "train_test_split.txt", *(f"{i} {i % 2}" for i, _ in rows))
    write_lines(folder / "bounding_boxes.txt", *(f"{i} 2.0 3.0 {10 + i % 5}.0 12.0" for i, _ in rows))


WRITERS: dict[str, Callable[[Path], None]] = {
    "cub": write_cub,
}
"""The writer of each benchmark, by the name that recipes and the command use."""
