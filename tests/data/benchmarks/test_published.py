"""The tiny copies of benchmarks can be trained on, and are refused where published numbers are expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import output
from tests.data.benchmarks.published import IMAGES, TEST_CLASSES, TRAIN, WRITERS, accept_small
from tests.data.benchmarks.published import TEST as NUM_TEST
from vicinal.data import load_table, split_fingerprint
from vicinal.utils.errors import InputError


@pytest.mark.parametrize("name", WRITERS)
def test_a_tiny_copy(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    WRITERS[name](tmp_path / "one")
    with pytest.raises(
        InputError, match=rf"the split train of {name} has 30 images of 6 classes, but .* are published"
    ):
        load_table(name, root=tmp_path / "one")
    accept_small(monkeypatch, name)
    table = load_table(name, root=tmp_path / "one")
    assert table.subset("train").class_counts.tolist() == [IMAGES] * TRAIN
    assert table.subset("test").class_counts.tolist() == [IMAGES] * TEST_CLASSES.get(name, NUM_TEST)
    if table.has("coarse"):
        assert table.subset("train").frame.groupby("coarse")["label"].nunique().tolist() == [TRAIN // 2] * 2
    (tmp_path / "one").rename(tmp_path / "two")
    text = output(capsys, "data", name, "--root", tmp_path / "two")
    assert f"split fingerprint: {split_fingerprint(table)}\n" in text
    assert "cannot be read" not in text
    assert "beyond" not in text
