from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from vicinal.data import load_table
from vicinal.data.benchmarks import digits


def test_digits_are_scikit_learns_in_full_contrast(tmp_path: Path) -> None:
    table = digits(tmp_path)
    data = load_digits()
    assert table.frame["label"].tolist() == data.target.tolist()
    assert table.subset("train").classes == [0, 1, 2, 3, 4]
    assert table.subset("test").classes == [5, 6, 7, 8, 9]
    for row in (0, 17, 1796):
        with Image.open(table.paths[row]) as image:
            assert image.mode == "L"
            assert np.array_equal(np.asarray(image), np.rint(data.images[row] * 255 / 16))
    assert load_table("digits", root=tmp_path).frame.equals(table.frame)
