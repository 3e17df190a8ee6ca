from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.benchmarks.published_more import (
    accept_small_more,
    write_fashion_mnist,
    write_idx,
    write_kmnist,
    write_mnist,
)
from vicinal.data import load_table
from vicinal.data.benchmarks import mnist
from vicinal.data.benchmarks.cache import COUNTS
from vicinal.data.benchmarks.mnist import read_idx
from vicinal.utils.errors import InputError

SAME_CLASSES = pytest.mark.filterwarnings("ignore:class '0' is in the splits train and test")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    accept_small_more(monkeypatch)


@SAME_CLASSES
@pytest.mark.parametrize(
    ("name", "write"), [("mnist", write_mnist), ("fashion_mnist", write_fashion_mnist), ("kmnist", write_kmnist)]
)
def test_images_are_those_of_the_files(tmp_path: Path, name: str, write: Callable[[Path], None]) -> None:
    write(tmp_path)
    table = load_table(name, root=tmp_path)
    assert {split: table.subset(split).class_counts.tolist() for split in table.splits} == {
        "train": [5] * 6,
        "test": [2] * 6,
    }
    images = read_idx(next(path for path in tmp_path.rglob("t10k-images*")), 3)
    testing = table.subset("test")
    assert testing.labels.tolist() == list(range(6)) * 2
    for path, pixels in zip(testing.paths, images, strict=True):
        with Image.open(path) as image:
            np.testing.assert_array_equal(np.asarray(image), pixels)


@SAME_CLASSES
def test_images_are_written_once_and_where_that_is_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path / "data", folder="MNIST/raw", suffix=".gz")
    for path in (tmp_path / "data/MNIST/raw").iterdir():  # as some archives name them
        path.rename(path.with_name(path.name.replace("-idx", ".idx").replace(".gz", "-ubyte.gz")))
    written = mnist(tmp_path / "data").paths[0]
    assert written == str(tmp_path / "data/mnist/png/train/0/00000.png")
    time = Path(written).stat().st_mtime_ns
    assert mnist(tmp_path / "data").paths[0] == written
    assert Path(written).stat().st_mtime_ns == time
    write_mnist(tmp_path / "kept")
    monkeypatch.setenv("VICINAL_DATA", str(tmp_path / "cache"))
    (tmp_path / "kept/mnist").chmod(0o555)
    try:
        assert mnist(tmp_path / "kept").paths[0].startswith(str(tmp_path / "cache/mnist/png"))
    finally:
        (tmp_path / "kept/mnist").chmod(0o755)


@SAME_CLASSES
def test_missing_and_damaged_files_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path)
    folder = tmp_path / "mnist"
    with pytest.raises(InputError, match=r"nothing: no train-images-idx3-ubyte or .* in mnist/, MNIST/raw/, MNIST/ or"):
        mnist(tmp_path / "nothing")
    labels = folder / "t10k-labels-idx1-ubyte.gz"
    whole = labels.read_bytes()
    labels.unlink()
    with pytest.raises(InputError, match=r"mnist: no t10k-labels-idx1-ubyte or .*; put the four files there"):
        mnist(tmp_path)
    for damaged, message in (
        (whole[:-9], r"ubyte\.gz: not a sound gzip file"),
        (b"no gzip file", r"ubyte\.gz: not a sound gzip file"),
        (gzip.compress(b"\0\0\x0d\x01\0\0\0\x01aaaa"), r"ubyte\.gz: not an idx file of bytes with 1 axes"),
        (gzip.compress(b"\0\0\x08\x01\0\0\0\x05aaaa"), r"ubyte\.gz: not the 5 bytes that its header says"),
        (gzip.compress(b"\0\0\x08\x01\0\0\0\x05aaaaaa"), r"ubyte\.gz: not the 5 bytes that its header says"),
        (gzip.compress(b"\0\0\x08"), r"ubyte\.gz: not an idx file"),
    ):
        labels.write_bytes(damaged)
        with pytest.raises(InputError, match=message):
            mnist(tmp_path)
    write_idx(labels, np.arange(5))
    with pytest.raises(InputError, match=r"mnist: 12 images for test but 5 labels"):
        mnist(tmp_path)
    labels.write_bytes(whole)
    monkeypatch.setitem(COUNTS, "mnist", {"train": (60_000, 10)})
    with pytest.raises(InputError, match=r"the split train of mnist has 30 images of 6 classes, but 60,000 of 10 are"):
        mnist(tmp_path)
    assert not (folder / "png").exists()
