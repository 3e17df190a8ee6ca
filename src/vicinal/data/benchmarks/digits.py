"""Handwritten digits: 1,797 images of 8 x 8 pixels that are part of scikit-learn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from vicinal.data.benchmarks.cache import prepare_table
from vicinal.data.table import Table
from vicinal.utils.files import cache_folder

MAX_PIXEL = 16


def digits(root: str | Path | None = None) -> Table:
    """The test set of UCI's "Optical Recognition of Handwritten Digits" (Alpaydin & Kaynak, 1998), without download.

    Labels are the integers 0 to 9. Classes 0-4 are the split train, 5-9 test.

    Args:
        root: The folder of benchmarks; by default the environment variable VICINAL_DATA, else ~/.cache/vicinal.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     table = digits(folder)
        >>> len(table), table.subset("test").classes
        (1797, [5, 6, 7, 8, 9])
    """
    return prepare_table(cache_folder(root) / "digits", _write)


def _write(folder: Path) -> pd.DataFrame:
    from sklearn.datasets import load_digits  # takes a second to import

    data = load_digits()
    frame = pd.DataFrame({"label": data.target.astype(np.int64)})
    frame.insert(0, "path", [f"{label}/{row:04d}.png" for row, label in enumerate(frame["label"])])
    frame["split"] = np.where(frame["label"] < 5, "train", "test")
    for label in frame["label"].unique():
        (folder / str(label)).mkdir()
    for path, image in zip(frame["path"], data.images, strict=True):
        Image.fromarray(np.rint(image * (255 / MAX_PIXEL)).astype(np.uint8)).save(folder / path)
    return frame
