"""Tiny benchmarks in the layout of the published files, and a way to accept how small they are.

`write_NAME(root)` writes the benchmark NAME into the folder `root`, as if its archive had been unpacked there. Unless
the format says otherwise, six classes are for training and four for testing, with five images each, so that a model can
be trained on them. `accept_small(monkeypatch, NAME)` makes its reader accept their numbers of images and classes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
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


def write_cars(root: Path) -> None:
    """`car_ims/` and `cars_annos.mat`: the classes 1 to 6 and 99 to 102."""
    images = _cars()
    names = [f"car_ims/{number:06d}.jpg" for number in range(1, len(images) + 1)]
    for name, label in zip(names, images, strict=True):
        write_image(root / name, label)
    rows = [
        (name, *_CAR_BOX, label, number % 2) for number, (name, label) in enumerate(zip(names, images, strict=True))
    ]
    write_records(root / "cars_annos.mat", ("relative_im_path", *_CAR_FIELDS, "test"), rows)


def write_cars_devkit(root: Path) -> None:
    """The same classes as `cars_train/`, `cars_test/` and `devkit/`, with the classes of the test images beside it."""
    for part, images in _halves(_cars()).items():
        names = [f"{number:05d}.jpg" for number in range(1, len(images) + 1)]
        for name, label in zip(names, images, strict=True):
            write_image(root / f"cars_{part}" / name, label)
        rows = [(*_CAR_BOX, label, name) for name, label in zip(names, images, strict=True)]
        path = root / ("devkit/cars_train_annos.mat" if part == "train" else "cars_test_annos_withlabels.mat")
        write_records(path, (*_CAR_FIELDS, "fname"), rows)
        if part == "test":
            unlabeled = [(*_CAR_BOX, name) for name in names]
            write_records(root / "devkit/cars_test_annos.mat", (*_CAR_FIELDS[:4], "fname"), unlabeled)


def write_cars_class_folders(root: Path) -> None:
    """The same classes as `car_data/`, `names.csv`, `anno_train.csv` and `anno_test.csv`."""
    names = [f"Model {number} C/V 2012" for number in range(1, 197)]
    write_lines(root / "names.csv", *names)
    for part, images in _halves(_cars()).items():
        files = [f"{number:05d}.jpg" for number in range(1, len(images) + 1)]
        for file, label in zip(files, images, strict=True):
            write_image(root / "car_data/car_data" / part / names[label - 1].replace("/", "-") / file, label)
        box = ",".join(map(str, _CAR_BOX))
        rows = zip(files, images, strict=True)
        write_lines(root / f"anno_{part}.csv", *(f"{file},{box},{label}" for file, label in rows))


_CAR_FIELDS = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class")
_CAR_BOX = (3, 2, 20, 18)


def _cars() -> list[int]:
    """The class of each image."""
    return [label for label in (*range(1, TRAIN + 1), *range(99, 99 + TEST)) for _ in range(IMAGES)]


def _halves(images: list[int]) -> dict[str, list[int]]:
    """A division of the images of each class, for classification."""
    return {"train": images[::2], "test": images[1::2]}


def write_records(path: Path, fields: Sequence[str], rows: Sequence[tuple[object, ...]]) -> None:
    """Write records as the struct array `annotations` of a file of MATLAB."""
    from scipy.io import savemat

    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {"annotations": np.array([rows], dtype=[(field, object) for field in fields])})


WRITERS: dict[str, Callable[[Path], None]] = {
    "cars": write_cars,
    "cub": write_cub,
}
"""The writer of each benchmark, by the name that recipes and the command use."""
