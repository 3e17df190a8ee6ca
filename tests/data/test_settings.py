from __future__ import annotations

import re
from typing import Any

import pytest

from vicinal.data import DataSettings, NoiseSettings
from vicinal.utils.errors import InputError

NAN = float("nan")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"random_labels": 1.5}, "data.noise.random_labels = 1.5 must be from 0 to 1"),
        ({"random_labels": NAN}, "data.noise.random_labels = nan must be from 0 to 1"),
        ({"foreign_fraction": 0.1}, "data.noise.foreign_fraction = 0.1 must be above 0 with data.noise.foreign, else"),
        ({"foreign": "digits"}, "data.noise.foreign_fraction = 0.0 must be above 0 with data.noise.foreign"),
        ({"foreign_root": "x"}, "data.noise.foreign_root = x must be null without data.noise.foreign"),
        ({"open_set_cluster_size": 3.0}, "must be left alone unless data.noise.open_set_labels is above 0"),
        ({"open_set_labels": 0.2, "open_set_cluster_size": 0.5}, "open_set_cluster_size = 0.5 must be 1 or more"),
        ({"classes": 0}, "data.noise.classes = 0 must be above 0 or null"),
    ],
)
def test_invalid_noise(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        NoiseSettings(**settings)


def test_settings_of_a_division_without_a_division() -> None:
    with pytest.raises(InputError, match=r"data\.order = in_order must be random without data\.fractions"):
        DataSettings(order="in_order", classes={"train": ["a"]})
    with pytest.raises(InputError, match=r"data\.redivide = true needs data\.fractions, data\.classes or"):
        DataSettings(redivide=True)
