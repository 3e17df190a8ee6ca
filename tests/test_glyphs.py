"""The rendered characters of `benchmarks/glyphs.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.glyphs import _font_files, _templates, glyphs
from vicinal.data import Table
from vicinal.utils.errors import InputError


def pixels(table: Table) -> np.ndarray:
    return np.stack([np.asarray(Image.open(path)) for path in table.paths])


def test_classes_images_and_splits(tmp_path: Path) -> None:
    table = glyphs(tmp_path, num_classes=20, samples_per_class=3, size=16)
    statistics = table.statistics()
    assert (statistics.num_images, statistics.num_classes, statistics.min_per_class, statistics.max_per_class) == (
        60,
        20,
        3,
        3,
    )
    assert {split: part.num_classes for split, part in statistics.splits.items()} == {"train": 10, "val": 2, "test": 8}
    assert table.frame.groupby("label")["split"].nunique().max() == 1
    assert table.frame["label"][0] == "U+0030/DejaVuSans"
    assert table.frame["coarse"][0] == "U+0030"
    images = pixels(table)
    assert images.shape == (60, 16, 16)
    assert len(np.unique(images.reshape(60, -1), axis=0)) == 60
    assert images.mean() > 150  # black on white
    assert (images.reshape(60, -1).min(axis=1) < 120).all()


def test_images_are_a_function_of_the_seed(tmp_path: Path) -> None:
    first, again = glyphs(tmp_path / "a", 4, 2, 16, seed=1), glyphs(tmp_path / "b", 4, 2, 16, seed=1)
    other = glyphs(tmp_path / "a", 4, 2, 16, seed=2)
    assert np.array_equal(pixels(first), pixels(again))
    assert not np.array_equal(pixels(first), pixels(other))


def test_images_of_a_class_are_more_alike_than_others(tmp_path: Path) -> None:
    table = glyphs(tmp_path, num_classes=10, samples_per_class=10, size=24)
    images = pixels(table).reshape(100, -1).astype(float)
    distances = ((images[:, None] - images[None]) ** 2).sum(-1)
    np.fill_diagonal(distances, np.inf)
    recall = (table.labels[distances.argmin(1)] == table.labels).mean()
    assert 0.5 < recall < 1.0


def test_fonts_follow_one_another_and_what_looks_alike_counts_once() -> None:
    first, second = _font_files()[:2]
    latin, greek, narrow_space, z = ord("A"), 0x391, 0x200B, ord("z")
    drawings = _templates([(first, [latin, greek, narrow_space, z]), (second, [latin])])
    assert [(code, font) for code, font, _ in drawings] == [
        ("U+0041", "DejaVuSans"),
        ("U+007A", "DejaVuSans"),
        ("U+0041", second.stem),
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_classes": 1}, "glyphs: num_classes is 1; it must be at least 2"),
        ({"samples_per_class": 0}, "glyphs: samples_per_class is 0; it must be at least 1"),
        ({"size": 2}, "glyphs: size is 2; it must be at least 4"),
        ({"seed": -1}, "glyphs: seed is -1; it must be at least 0"),
    ],
)
def test_impossible_numbers(tmp_path: Path, arguments: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        glyphs(tmp_path, **arguments)


def test_more_classes_than_characters(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"glyphs: num_classes is 1000000; the fonts of matplotlib give \d+ at most"):
        glyphs(tmp_path, num_classes=1_000_000)
    assert [path.name for path in (tmp_path / "glyphs").iterdir() if path.is_dir()] == []
