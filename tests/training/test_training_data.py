"""The training data of a recipe, and what is said about them."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pandas as pd

from vicinal.training import Recipe
from vicinal.training.training_data import load_training_table


def test_a_class_of_one_image_is_warned_of_once_and_only_where_it_is_trained_on(tmp_path: Path) -> None:
    frame = pd.DataFrame({"path": [f"{number}.png" for number in range(9)], "label": list("aabbccddx")})
    frame.to_csv(tmp_path / "t.csv", index=False)
    settings, trained = Recipe.load(overrides=[f"--data.source={tmp_path / 't.csv'}"]).settings, set()
    for seed in range(12):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            number = int("x" in load_training_table(replace(settings, seed=seed)).subset("train").classes)
        assert ["class 'x' has one image" in str(each.message) for each in caught].count(True) == number, seed
        trained.add(number)
    assert trained == {0, 1}
