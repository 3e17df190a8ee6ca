from __future__ import annotations

import pandas as pd
import pytest

from vicinal.data import Table, check_trainable
from vicinal.utils.errors import InputError


def table(*labels: str) -> Table:
    return Table(pd.DataFrame({"label": list(labels)}))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (("cat", "cat"), r"only one class \('cat', 2 images\)"),
        (("cat", "dog"), r"all 2 classes have one image \('cat' and so on\)"),
        ((), "no images"),
    ],
)
def test_what_cannot_be_trained_on(labels: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_trainable(table(*labels))


def test_classes_of_one_image_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="class 'cat' has one image, and so have 1 other class:"):
        check_trainable(table("dog", "dog", "cat", "owl"))
