"""The rendered characters of `benchmarks/glyphs.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.glyphs import glyphs
from vicinal.data import Table


def pixels(table: Table) -> np.ndarray:
    return np.stack([np.asarray(Image.open(path)) for path in table.paths])


def test_classes_images_and_splits(tmp_path: Path) -> None:
    table = glyphs(tmp_path, num_classes=20, samples_per_class=3, size=16)
    statistics = table.statistics()
    assert (statistics.num_images, statistics.num_classes, statistics.min_per_class) == (60, 20, 3)
    assert {split: part.num_classes for split, part in statistics.splits.items()} == {"train": 10, "val": 2, "test": 8}
    assert table.frame.groupby("label")["split"].nunique().max() == 1
    assert table.frame["label"][0] == "U+0030/DejaVuSans"
    assert table.frame["coarse"][0] == "U+0030"
    images = pixels(table)
    assert images.shape == (60, 16, 16)
    assert len(np.unique(images.reshape(60, -1), axis=0)) == 60
    assert images.mean() > 150  # black on white
    assert (images.reshape(60, -1).min(axis=1) < 120).all()
