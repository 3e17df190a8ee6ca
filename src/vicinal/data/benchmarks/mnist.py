"""MNIST and datasets in its format: small grayscale images of ten classes, in four idx files."""

from __future__ import annotations

import gzip
import itertools
import math
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from PIL import Image

from vicinal.data.benchmarks.cache import check_counts, find_folder, prepare_table, writable_root
from vicinal.data.table import Table
from vicinal.utils.errors import InputError, unreadable
from vicinal.utils.files import cache_folder, check_regular_file

UNSIGNED_BYTE = 8  # the code of the type in the header
MAX_BYTES = 2**28  # of a file, more than any of these data sets has
PARTS = {"train": "train", "test": "t10k"}  # how the names of the files of each split begin
FORMS = ("{}-{}-idx{}-ubyte", "{}-{}.idx{}-ubyte")  # of their names, as published and as some archives have them


def read_idx(path: Path, num_axes: int) -> npt.NDArray[np.uint8]:
    """Read an idx file of bytes, compressed by gzip if its name ends in .gz: 1 axis for labels, 3 for images."""
    check_regular_file(path)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(4 + 4 * num_axes)
            if len(header) < 4 + 4 * num_axes or header[:4] != bytes([0, 0, UNSIGNED_BYTE, num_axes]):
                raise InputError(f"{path}: not an idx file of bytes with {num_axes} axes")
            shape = np.frombuffer(header[4:], ">u4").tolist()
            expected = math.prod(shape)
            if expected > MAX_BYTES:
                raise InputError(f"{path}: its header says {expected:,} bytes; the copy is damaged")
            data = file.read(expected + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: not a valid gzip file ({error}); download it again") from None
    except OSError as error:
        raise unreadable(path, error) from None
    if len(data) != expected:
        size = " x ".join(map(str, shape))
        raise InputError(f"{path}: not the {size} bytes that its header says; the copy is partial or damaged")
    return np.frombuffer(data, np.uint8).reshape(shape)


def mnist(root: str | Path | None = None) -> Table:
    """MNIST (LeCun et al., 1998): 60,000 handwritten digits for training, 10,000 for testing.

    Both splits have the same ten classes, 0 to 9, as in Fig. 4 of the paper of the center contrastive loss; a warning
    says so. Images are 28 x 28 pixels.

    Args:
        root: The folder of benchmarks; by default the environment variable VICINAL_DATA, else ~/.cache/vicinal. It
            holds the four published idx files, compressed or not, in `mnist`, `MNIST/raw` or directly. The images are
            written to `mnist/png` once, in the default folder if the root is not writable.

    Raises:
        InputError: A file is missing or damaged, or the counts are not those above.
    """
    return _table("mnist", ("mnist", "MNIST/raw", "MNIST"), "http://yann.lecun.com/exdb/mnist", root)


def fashion_mnist(root: str | Path | None = None) -> Table:
    """Fashion-MNIST (Xiao et al., 2017): photographs of clothes, as :func:`mnist`; its folder is `fashion_mnist`."""
    names = ("fashion_mnist", "FashionMNIST/raw", "FashionMNIST")
    return _table("fashion_mnist", names, "https://github.com/zalandoresearch/fashion-mnist", root)


def kmnist(root: str | Path | None = None) -> Table:
    """Kuzushiji-MNIST (Clanuwat et al., 2018): Japanese characters, as :func:`mnist`; its folder is `kmnist`."""
    return _table("kmnist", ("kmnist", "KMNIST/raw", "KMNIST"), "https://github.com/rois-codh/kmnist", root)


def _table(name: str, folders: tuple[str, ...], home: str, root: str | Path | None) -> Table:
    markers = _names("train", "images", 3)
    folder, _ = find_folder(root, folders, markers, f"download the four files from {home}")
    written = writable_root(cache_folder(root), name) / name / "png"
    return prepare_table(written, partial(_write, name, folder))


def _names(part: str, content: str, num_axes: int) -> list[str]:
    plain = [form.format(part, content, num_axes) for form in FORMS]
    return [*plain, *(f"{name}.gz" for name in plain)]


def _write(name: str, source: Path, folder: Path) -> pd.DataFrame:
    """Write the images as PNG files, after checking that the counts are as published."""
    labels = {split: _read(source, part, "labels", 1) for split, part in PARTS.items()}
    images = {split: _read(source, part, "images", 3) for split, part in PARTS.items()}
    for split in PARTS:
        if len(images[split]) != len(labels[split]):
            raise InputError(f"{source}: {len(images[split])} images for {split} but {len(labels[split])} labels")
    frames = [
        pd.DataFrame({"label": values.astype(np.int64), "split": split, "row": np.arange(len(values))})
        for split, values in labels.items()
    ]
    frame = pd.concat(frames, ignore_index=True)
    check_counts(name, Table._from_valid(frame), source)
    paths = [f"{split}/{label}/{row:05d}.png" for label, split, row in frame.itertuples(index=False)]
    for parent in {Path(path).parent for path in paths}:
        (folder / parent).mkdir(parents=True)
    for path, image in zip(paths, itertools.chain(*images.values()), strict=True):
        Image.fromarray(image).save(folder / path)
    return frame[["label", "split"]].assign(path=paths)


def _read(folder: Path, part: str, content: str, num_axes: int) -> npt.NDArray[np.uint8]:
    names = _names(part, content, num_axes)
    found = [folder / name for name in names if (folder / name).exists()]
    if not found:
        raise InputError(f"{folder}: no {' or '.join(names)}; put the four files there")
    return read_idx(found[0], num_axes)
