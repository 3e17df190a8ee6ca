"""Checks of a table before work starts that could not succeed."""

from __future__ import annotations

import warnings

from vicinal.data.table import Table
from vicinal.errors import InputError


def require_trainable(table: Table) -> None:
    """Refuse a table from which no embedding can be learned; warn of classes that cannot give a pair.

    Args:
        table: the training split.

    Raises:
        InputError: no labels, one class only, or no class with two images.

    Example:
        >>> import pandas as pd
        >>> require_trainable(Table(pd.DataFrame({"label": ["cat", "cat"]})))
        Traceback (most recent call last):
            ...
        vicinal.errors.InputError: only one class ('cat', 2 images); training needs images of two classes or more
    """
    counts = table.class_counts
    if len(counts) == 0:
        raise InputError("no images; training needs images of two classes or more")
    if len(counts) == 1:
        raise InputError(
            f"only one class ({str(table.classes[0])!r}, {counts[0]} images); "
            "training needs images of two classes or more"
        )
    single = [str(name) for name, count in zip(table.classes, counts, strict=True) if count == 1]
    if len(single) == len(counts):
        raise InputError(
            f"all {len(single)} classes have one image ({single[0]!r} and so on); "
            "training on pairs needs classes with two"
        )
    if single:
        others = f", and so have {len(single) - 1} other classes" if len(single) > 1 else ""
        warnings.warn(f"class {single[0]!r} has one image{others}: it can give no positive pair", stacklevel=2)
