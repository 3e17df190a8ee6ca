"""The columns that have a meaning in a table, the checks and types of their values, and what identifies an image."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from vicinal.utils.arguments import is_integer
from vicinal.utils.console import counted
from vicinal.utils.errors import InputError

SPLITS = ("train", "val", "test")
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
"""Split names of top folders and containers, in lower case -> splits."""
INT64 = np.iinfo(np.int64)
BOOLEAN_COLUMNS = ("is_query", "is_gallery", "noisy_label", "noisy_image")
BOX_COLUMNS = ("x_1", "y_1", "x_2", "y_2")  # left, top, right, bottom of the part of an image that a row is
PUBLISHED_BOX_COLUMNS = tuple(f"box_{name}" for name in BOX_COLUMNS)  # of benchmarks, whose protocols do not crop
COLUMN_FLAGS = {"path_column": "path", "label_column": "label"}  # the settings that name columns
BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
Box: TypeAlias = tuple[float, float, float, float]
"""The left, top, right and bottom edge, in pixels of the upright image."""


def is_label_column(column: str) -> bool:
    """Whether the column holds names: `label`, `label_clean`, `group`, or a coarse label."""
    return column in ("label", "label_clean", "group") or is_coarse_column(column)


def is_coarse_column(column: str) -> bool:
    """Whether the column holds coarse labels: `coarse`, `coarse_2`, `coarse_3`, ..."""
    return column == "coarse" or (column.startswith("coarse_") and column[7:].isdigit())


def is_known_column(column: str) -> bool:
    """Whether Vicinal gives the column a meaning. Other columns are kept unchanged."""
    return is_label_column(column) or column in ("path", "split", *BOOLEAN_COLUMNS)


def named_columns(settings: Mapping[str, Any]) -> dict[str, str]:
    """The settings that name the columns of paths and labels, without those that are not given."""
    return {flag: settings[flag] for flag in COLUMN_FLAGS if isinstance(settings.get(flag), str)}


def column_aliases(settings: Mapping[str, Any]) -> dict[str, str]:
    """Further names of the columns `path` and `label`, such as {"file": "path"}, by the settings that give them."""
    return {name: COLUMN_FLAGS[flag] for flag, name in named_columns(settings).items()}


def validate_frame(frame: pd.DataFrame, root: str | Path | None = None) -> pd.DataFrame:
    """Return a copy of the frame in which every known column is checked and converted, with rows numbered from 0."""
    repeated = frame.columns[frame.columns.duplicated()]
    if len(repeated):
        raise InputError(f"column {repeated[0]!r} appears twice; every column needs its own name")
    columns = {str(column): _validate_column(frame[column], str(column), root) for column in frame.columns}
    columns = _with_checked_boxes(_with_comparable_labels(columns))
    return pd.DataFrame(columns, index=frame.index).reset_index(drop=True)


def _with_comparable_labels(columns: dict[str, pd.Series]) -> dict[str, pd.Series]:
    """Convert `label` and `label_clean` to text if one of them is text: CSV turns a column of "7" into integers."""
    both = [column for column in ("label", "label_clean") if column in columns]
    if len({columns[column].dtype for column in both}) < 2:
        return columns
    return columns | {column: columns[column].astype("str") for column in both}


def _with_checked_boxes(columns: dict[str, pd.Series]) -> dict[str, pd.Series]:
    """Convert the columns of bounding boxes to float64, NaN in rows without a box, if all four are there."""
    missing = [column for column in BOX_COLUMNS if column not in columns]
    if len(missing) == 1:
        raise InputError(
            f"the table lacks {missing[0]!r} of the box columns {', '.join(BOX_COLUMNS)}; add or rename it"
        )
    if missing:
        return columns
    numbers = {column: _numbers(columns[column], column) for column in BOX_COLUMNS}
    edges = [numbers[column].to_numpy() for column in BOX_COLUMNS]
    wrong = np.flatnonzero(~is_box(*edges) & ~np.isnan(edges).all(axis=0))
    if len(wrong):
        x_1, y_1, x_2, y_2 = (edge[wrong[0]] for edge in edges)
        reason = "lacks an edge; give all four, or none"
        if not np.isnan([x_1, y_1, x_2, y_2]).any():
            reason = (
                "is empty or outside of its image; x_1, y_1 is its upper left corner and x_2, y_2 its lower right one"
            )
        raise InputError(
            f"{_row(numbers['x_1'], wrong[0])}: the bounding box from ({x_1:g}, {y_1:g}) to ({x_2:g}, {y_2:g}) {reason}"
        )
    return columns | numbers


def _numbers(values: pd.Series, column: str) -> pd.Series:
    filled = values.mask(values.astype("str") == "")
    numbers = pd.to_numeric(filled, errors="coerce").astype(np.float64)
    wrong = np.flatnonzero(numbers.isna() & filled.notna())
    if len(wrong):
        raise InputError(f"{_row(values, wrong[0])}: {column} is {values.iloc[wrong[0]]!r}; it is a number of pixels")
    return numbers


def _validate_column(values: pd.Series, column: str, root: str | Path | None) -> pd.Series:
    if not is_known_column(column):
        return values
    _check_missing(values, column)
    if column == "path":
        return _absolute_paths(values, root)
    if column == "split":
        return _splits(values)
    return _labels(values, column) if is_label_column(column) else _booleans(values, column)


def _row(values: pd.Series, position: int) -> str:
    return f"{values.index.name or 'row'} {values.index[position]}"


def _check_missing(values: pd.Series, column: str) -> None:
    # Cells are compared one by one, since a cell that holds a list would be compared element by element.
    is_missing = values.isna().to_numpy(dtype=bool)
    if not pd.api.types.is_numeric_dtype(values.dtype):
        is_missing = is_missing | np.array([isinstance(value, str) and value == "" for value in values], dtype=bool)
    missing = np.flatnonzero(is_missing)
    if len(missing):
        more = f" (nor have {len(missing) - 1} others)" if len(missing) > 1 else ""
        raise InputError(f"{_row(values, missing[0])} has no {column}{more}; every row needs one")


def _absolute_paths(values: pd.Series, root: str | Path | None) -> pd.Series:
    folder = os.path.abspath(root) if root is not None else os.getcwd()
    for position, path in enumerate(values):
        if not isinstance(path, (str, os.PathLike)):
            raise InputError(f"{_row(values, position)}: path {path!r} is not text; give the name of a file")
        check_utf8(os.fspath(path), _row(values, position))
        if "\0" in os.fspath(path):
            raise InputError(f"{_row(values, position)}: the path {path!r} has a null character; name a file")
    return pd.Series([os.path.normpath(os.path.join(folder, path)) for path in values], index=values.index)


def check_utf8(path: str, where: str) -> None:
    """Raise InputError if a file name is not UTF-8: Python decodes it to lone surrogates, which no table can hold."""
    if not is_unicode(path):
        raise InputError(f"{where}: the file name {path!r} is not UTF-8; rename the file")


def _splits(values: pd.Series) -> pd.Series:
    invalid = np.flatnonzero([not isinstance(value, str) or value not in SPLITS for value in values])
    if len(invalid):
        row, value = _row(values, invalid[0]), values.iloc[invalid[0]]
        raise InputError(f"{row}: split is {value!r}; it can be train, val or test")
    return values.astype("str")


def _booleans(values: pd.Series, column: str) -> pd.Series:
    given = values.tolist()
    booleans = [BOOLEANS.get(str(value).lower()) for value in given]
    if None in booleans:
        position = booleans.index(None)
        raise InputError(
            f"{_row(values, position)}: {column} is {given[position]!r}; it can be true or false, else rename it"
        )
    return pd.Series(booleans, index=values.index, dtype=bool)


def _labels(values: pd.Series, column: str) -> pd.Series:
    """Convert to all text or all int64: mixed values cannot be sorted, and fractions are not labels."""
    if isinstance(values.dtype, np.dtype) and values.dtype.kind == "i":
        return pd.Series(values.to_numpy(np.int64), index=values.index)
    objects = values.tolist()
    for position, value in enumerate(objects):
        if isinstance(value, str) and not is_unicode(value):
            raise InputError(f"{_row(values, position)}: the {column} {value!r} is not Unicode text; rename it")
    if pd.api.types.is_float_dtype(values):
        objects = [int(value) if value.is_integer() else value for value in objects]
    is_text = not objects or isinstance(objects[0], str)
    for position, value in enumerate(objects):
        if not (isinstance(value, str) if is_text else is_integer(value) and INT64.min <= value <= INT64.max):
            raise InputError(
                f"{_row(values, position)}: {column} is {value!r}; "
                f"a {column} is text or a 64-bit integer, the same type in all rows"
            )
    return pd.Series(objects, index=values.index, dtype="str" if is_text else np.int64)


def is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8: it has no lone surrogate, as file names may have."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def row_boxes(frame: pd.DataFrame) -> list[Box | None]:
    """The bounding box of each row, None where it has none."""
    if not set(BOX_COLUMNS) <= set(frame):
        return [None] * len(frame)
    edges = frame[list(BOX_COLUMNS)].to_numpy(dtype=np.float64, na_value=np.nan)
    return [None if math.isnan(row[0]) else (row[0], row[1], row[2], row[3]) for row in edges.tolist()]


def is_box(x_1: Any, y_1: Any, x_2: Any, y_2: Any) -> Any:
    """Whether the edges are finite and in order, and the box overlaps the quadrant of images, elementwise."""
    finite = np.isfinite([x_1, y_1, x_2, y_2]).all(axis=0)
    return finite & (np.less(x_1, x_2) & np.less(y_1, y_2)) & (np.greater(x_2, 0) & np.greater(y_2, 0))


def image_keys(frame: pd.DataFrame) -> list[str]:
    """A unique name of each image of a table: its path, and the bounding box if it has one."""
    paths = [str(path) for path in frame["path"]]
    return [image_key(path, box) for path, box in zip(paths, row_boxes(frame), strict=True)]


def image_key(path: str, box: Box | None) -> str:
    """The unique name of an image, see :func:`image_keys`."""
    return path if box is None else f"{path} [{', '.join(f'{edge:.10g}' for edge in box)}]"


def warn_of_repeated_images(frame: pd.DataFrame, stacklevel: int) -> None:
    """Warn if a split has two rows of one image that are both in the gallery: they would be each other's first match.

    Rows of one file with different bounding boxes are different images.
    """
    if "path" not in frame:
        return
    told_apart = [column for column in ("path", "split", *BOX_COLUMNS) if column in frame]
    is_repeated = frame.duplicated(told_apart, keep=False)
    if "is_gallery" in frame:
        is_repeated &= frame["is_gallery"].astype(bool)
        is_repeated &= frame[is_repeated].duplicated(told_apart, keep=False).reindex(frame.index, fill_value=False)
    if not is_repeated.any():
        return
    repeated = frame[is_repeated]
    images = repeated.groupby(told_apart, dropna=False, sort=False)
    path = repeated["path"].iloc[0]
    rows = " and ".join(map(str, repeated.index[repeated["path"] == path][:2]))
    wrong = int((images["label"].nunique() > 1).sum()) if "label" in frame else 0
    warnings.warn(
        f"{counted(images.ngroups, 'image is', 'images are')} in several rows, such as {path} (rows {rows})"
        + (f", {wrong:,} of them with different labels" if wrong else "")
        + ": such rows match each other, which inflates scores; keep one of each",
        stacklevel=stacklevel + 1,
    )
