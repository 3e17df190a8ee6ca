"""A partial copy of a benchmark is refused, and the message says what is missing."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from vicinal.data import Table
from vicinal.data.benchmarks.cache import COUNTS, check_complete, check_images
from vicinal.utils.errors import InputError


def test_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COUNTS, "birds", {"train": (3, 2), "test": (1, 1)})
    frame = pd.DataFrame({"path": ["a", "b", "c"], "label": [1, 1, 2], "split": "train"})
    with pytest.raises(InputError, match=r"the split test of birds has 0 images of 0 classes, but 1 of 1 are"):
        check_complete("birds", Table(frame, tmp_path), tmp_path)
    with pytest.raises(InputError, match=r"the split train of birds has 2 images of 1 classes, but 3 of 2 are pub"):
        check_complete("birds", Table(frame[:2], tmp_path), tmp_path)


def test_versions_and_numbers_that_are_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").touch()
    table = Table(pd.DataFrame({"path": ["a", "a", "a"], "label": [1, 1, 2], "split": "train"}), tmp_path)
    for counts in ([(9, 9), (3, 2)], (None, 2)):
        monkeypatch.setitem(COUNTS, "birds", {"train": counts})
        assert check_complete("birds", table, tmp_path) is table
    monkeypatch.setitem(COUNTS, "birds", {"train": [(9_000, 2), (None, 1_003)]})
    with pytest.raises(InputError, match="3 images of 2 classes, but 9,000 of 2 or 1,003 classes are published"):
        check_complete("birds", table, tmp_path)


def test_absent_images(tmp_path: Path) -> None:
    (tmp_path / "here.jpg").touch()
    paths = [str(tmp_path / name) for name in ("here.jpg", "a.jpg", "x/b.jpg", "c.jpg", "d.jpg")]
    check_images(paths[:1], tmp_path)
    with pytest.raises(InputError, match=r"4 of 5 images that its lists name are absent: a.jpg, x/b.jpg, c.jpg,"):
        check_images(paths, tmp_path)
