from __future__ import annotations

import pytest

from vicinal.evaluation import Resampling
from vicinal.utils.errors import InputError


def test_bad_input() -> None:
    for arguments, message in (
        ({"confidence_level": 1.0}, r"confidence_level = 1\.0 is invalid; use one between 0 and 1"),
        ({"num_resamples": 0}, "num_resamples = 0 is invalid; use an integer from 1 up"),
        ({"seed": -1}, "seed = -1 is invalid; use an integer from 0 up"),
        ({"resample_by": "images"}, "resample_by = 'images' is invalid; use classes or queries"),
    ):
        with pytest.raises(InputError, match=message):
            Resampling(**arguments)
