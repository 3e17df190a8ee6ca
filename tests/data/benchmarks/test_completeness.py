"""A partial copy of a benchmark is refused, and the message says what is missing."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from vicinal.data import Table
from vicinal.data.benchmarks.completeness import COUNTS, check_complete, check_images
from vicinal.utils.errors import InputError


def test_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COUNTS, "birds", {"train": (3, 2), "test": (1, 1)})
    frame = pd.DataFrame({"path": ["a", "b", "c"], "label": [1, 1, 2], "split": "train"})
    with pytest.raises(
        InputError, match=r"the split test of birds has 0 images of 0 classes, but 1 of 1 are published"
    ):
        check_complete("birds", Table(frame, tmp_path), tmp_path)
    with pytest.raises(InputError, match=r"the split train of birds has 2 images of 1 classes, but 3 of 2 are pub"):
        check_complete("birds", Table(frame[:2], tmp_path), tmp_path)


def test_absent_images(tmp_path: Path) -> None:
    (tmp_path / "here.jpg").touch()
    paths = [str(tmp_path / name) for name in ("here.jpg", "a.jpg", "x/b.jpg", "c.jpg", "d.jpg")]
    check_images(paths[:1], tmp_path)
    with pytest.raises(
        InputError, match=r"4 of 5 images that its lists name are absent: a.jpg, x/b.jpg, c.jpg, \.\.\."
    ):
        check_images(paths, tmp_path)
