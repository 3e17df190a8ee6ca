from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from vicinal.data import DataSettings, NoiseSettings, Table, load_dataset, load_table
from vicinal.utils.errors import InputError


def test_load_table_names_the_possible_sources(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^digit: no such folder, file or benchmark; did you mean digits\?$"):
        load_table("digit")
    with pytest.raises(InputError, match=r"lost\.csv: no such file"):
        load_table(tmp_path / "lost.csv")


@pytest.fixture
def source(tmp_path: Path) -> str:
    frame = pd.DataFrame({"path": "x.png", "label": np.repeat(np.arange(10), 4), "coarse": np.repeat([0, 1], 20)})
    Table(frame, root=tmp_path).save(tmp_path / "t.csv")
    return str(tmp_path / "t.csv")


def sizes(table: Table) -> dict[str, int]:
    return {split: len(table.subset(split).classes) for split in table.splits}


def test_a_dataset_is_split_by_default_fractions_and_as_the_settings_say(source: str) -> None:
    assert sizes(load_dataset(DataSettings(source))) == {"train": 6, "val": 2, "test": 2}
    assert sizes(load_dataset(DataSettings(source, fractions={"train": 0.5, "test": 0.5}))) == {"train": 5, "test": 5}
    assert sizes(load_dataset(DataSettings(source, classes={"train": [1, 2]}))) == {"train": 2}
    by_coarse = load_dataset(DataSettings(source, fractions={"train": 0.5, "val": 0.5}, split_column="coarse"))
    assert sizes(by_coarse) == {"train": 5, "val": 5}
    assert by_coarse.frame.groupby("coarse")["split"].nunique().max() == 1


def test_the_seed_of_a_dataset_determines_splits_and_noise(source: str) -> None:
    settings = DataSettings(source, noise=NoiseSettings(random_labels=0.25))
    one, same, other = (load_dataset(settings, seed).frame for seed in (1, 1, 2))
    assert one.equals(same)
    assert not one["split"].equals(other["split"])
    assert one["noisy_label"].sum() == 6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source": None}, "data.source is missing: give a folder of class folders"),
        ({"classes": {"val": [1]}}, "has no rows in the split train; its splits: val"),
        ({"label_column": None}, "has no labels; training needs a folder for each class, all at the same depth, or a"),
        ({"label_column": "path"}, "only one class"),
    ],
)
def test_datasets_that_cannot_be_used(source: str, settings: dict[str, object], message: str) -> None:
    if settings.get("label_column", "") is None:
        Table.from_csv(source, label_column=None).frame.drop(columns="label").to_csv(source, index=False)
    with pytest.raises(InputError, match=message):
        load_dataset(DataSettings(**{"source": source, **settings}))  # type: ignore[arg-type]
