"""Photos of one series that find each other are told, and groups by the names of files."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import ExifTags, Image

from tests.refusals import refused_call
from vicinal.data import Table
from vicinal.data.groups import with_groups
from vicinal.evaluation import evaluate
from vicinal.workflows.embedded_table import EmbeddedTable
from vicinal.workflows.series import series_fraction, warn_of_series


def photos(series_noise: float) -> EmbeddedTable:
    """Ten classes of four series of three photos; those of a series are like each other, the classes hardly."""
    rng = np.random.default_rng(0)
    labels, series = np.repeat(np.arange(10), 12), np.repeat(np.arange(40), 3)
    vectors = rng.normal(size=(10, 32))[labels] + 2.0 * rng.normal(size=(40, 32))[series]
    vectors = (vectors + series_noise * rng.normal(size=(120, 32))).astype(np.float32)
    paths = [f"/p/c{label}/s{label}-{number // 3}_{number:d}.jpg" for label in range(10) for number in range(12)]
    order = rng.permutation(120)
    return EmbeddedTable(vectors[order], Table(pd.DataFrame({"path": paths, "label": labels}).iloc[order]), "")


def test_series_are_told_and_a_pattern_of_names_gives_groups(capsys: pytest.CaptureFixture[str]) -> None:
    embedded = photos(0.1)
    fraction, chance = series_fraction(embedded) or (0.0, 0.0)
    assert (fraction > 0.6, round(chance, 2)) == (True, 0.18)
    warn_of_series("photos", embedded)
    assert "of the right first matches are the file beside the query's (18 % by chance)" in capsys.readouterr().err
    grouped = with_groups(embedded.table, r"(.*)_[0-9]+")
    assert "40 groups by group_pattern" in capsys.readouterr().err
    before, after = evaluate(embedded.vectors, embedded.table), evaluate(embedded.vectors, grouped)
    assert before.metrics["recall@1"] > after.metrics["recall@1"] + 0.05
    assert str(before).startswith("leave-one-out: 120 queries")
    assert str(after).startswith("leave-one-out, other groups: 120 queries")
    warn_of_series("photos", EmbeddedTable(embedded.vectors, grouped, ""))
    warn_of_series("photos", photos(9.0))  # whose first matches are any of the class
    assert capsys.readouterr().err == ""


def test_groups_by_the_times_of_photos(tmp_path: Path) -> None:
    for number, minute in enumerate(("00", "09", "18", "40", None)):
        exif = Image.Exif()
        if minute is not None:
            exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = f"2024:05:01 10:{minute}:00"
        Image.new("RGB", (2, 2)).save(tmp_path / f"{number}.jpg", exif=exif)
    table = Table(pd.DataFrame({"path": [str(tmp_path / f"{number}.jpg") for number in (3, 1, 0, 2, 4)]}))
    assert with_groups(table, None, minutes=10).frame["group"].tolist() == [1, 0, 0, 0, -1]
    for minutes, rows, message in ((0, 4, "must be positive"), (5, [4], "no image has a time of capture")):
        refused_call(message, with_groups, table.take(np.atleast_1d(rows)), None, minutes)


def test_patterns_that_give_no_groups() -> None:
    table = Table(pd.DataFrame({"path": ["/a_1.jpg", "/b.jpg"], "label": ["a", "b"]}))
    for pattern, message in (("(", "is not a regular expression"), ("x+", "matches no path, such as /a_1.jpg")):
        refused_call(message, with_groups, table, pattern)
    refused_call("the table already has a column group", with_groups, Table(table.frame.assign(group=[0, 1])), "a")
