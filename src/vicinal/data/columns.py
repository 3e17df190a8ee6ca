"""The columns of a table: which there are, and how their values are checked and brought to one type."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd

from vicinal.errors import InputError

SPLITS = ("train", "val", "test")
INT64 = np.iinfo(np.int64)
MARKS = ("is_query", "is_gallery", "noisy_label", "noisy_image")  # columns of truths
TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def is_name_column(column: str) -> bool:
    """Whether the column holds names of groups of images: `label`, `label_clean`, `group`, `coarse`, `coarse_2`, ..."""
    return column in ("label", "label_clean", "group") or is_coarse_column(column)


def is_coarse_column(column: str) -> bool:
    return column == "coarse" or (column.startswith("coarse_") and column[7:].isdigit())


def is_known_column(column: str) -> bool:
    """Whether Vicinal gives the column a meaning; any other column is carried along as it is."""
    return is_name_column(column) or column in ("path", "split", *MARKS)


def checked_frame(frame: pd.DataFrame, root: str | Path | None) -> pd.DataFrame:
    """A copy of the frame with every known column checked and typed, and rows numbered from 0.

    Raises:
        InputError: a value is missing or impossible; the row is named by the frame's own index.
    """
    repeated = frame.columns[frame.columns.duplicated()]
    if len(repeated):
        raise InputError(f"column {repeated[0]!r} is there twice; every column needs its own name")
    columns = {str(column): _checked_column(frame[column], str(column), root) for column in frame.columns}
    return pd.DataFrame(_with_comparable_labels(columns), index=frame.index).reset_index(drop=True)


def _with_comparable_labels(columns: dict[str, pd.Series]) -> dict[str, pd.Series]:
    """Make `label` and `label_clean` both text where one is: CSV gives back 7 for "7" in a column of such names."""
    both = [column for column in ("label", "label_clean") if column in columns]
    if len({columns[column].dtype for column in both}) < 2:
        return columns
    return columns | {column: columns[column].astype("str") for column in both}


def _checked_column(values: pd.Series, column: str, root: str | Path | None) -> pd.Series:
    if not is_known_column(column):
        return values
    _refuse_missing(values, column)
    if column == "path":
        return _paths(values, root)
    if column == "split":
        return _splits(values)
    return _names(values, column) if is_name_column(column) else _truths(values, column)


def _row(values: pd.Series, position: int) -> str:
    return f"{values.index.name or 'row'} {values.index[position]}"


def _refuse_missing(values: pd.Series, column: str) -> None:
    # Compared one by one, for a list in a cell compares item by item.
    is_empty = np.array([isinstance(value, str) and value == "" for value in values], dtype=bool)
    missing = np.flatnonzero(values.isna().to_numpy(dtype=bool) | is_empty)
    if len(missing):
        more = f" (nor have {len(missing) - 1} others)" if len(missing) > 1 else ""
        raise InputError(f"{_row(values, missing[0])} has no {column}{more}; every row needs one")


def _paths(values: pd.Series, root: str | Path | None) -> pd.Series:
    folder = os.path.abspath(root) if root is not None else os.getcwd()
    for position, path in enumerate(values):
        if not isinstance(path, (str, os.PathLike)):
            raise InputError(f"{_row(values, position)}: path {path!r} is no text; a path is a file's name")
        require_utf8(os.fspath(path), _row(values, position))
    return pd.Series([os.path.normpath(os.path.join(folder, path)) for path in values], index=values.index)


def require_utf8(path: str, where: str) -> None:
    """Refuse the name of a file that is no text, which Python holds as lone surrogates and no table can hold."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InputError(f"{where}: the file name {path!r} is not UTF-8; rename the file") from None


def _splits(values: pd.Series) -> pd.Series:
    wrong = np.flatnonzero([not isinstance(value, str) or value not in SPLITS for value in values])
    if len(wrong):
        raise InputError(f"{_row(values, wrong[0])}: split is {values.iloc[wrong[0]]!r}; it can be train, val or test")
    return values.astype("str")


def _truths(values: pd.Series, column: str) -> pd.Series:
    given = values.tolist()
    known = [TRUTHS.get(str(value).lower()) for value in given]
    if None in known:
        position = known.index(None)
        raise InputError(
            f"{_row(values, position)}: {column} is {given[position]!r}; it can be true or false, else rename it"
        )
    return pd.Series(known, index=values.index, dtype=bool)


def _names(values: pd.Series, column: str) -> pd.Series:
    """All integers or all text: a mixture has no order, and fractions are no names."""
    objects = values.tolist()
    if pd.api.types.is_float_dtype(values):
        objects = [int(value) if value.is_integer() else value for value in objects]
    is_text = not objects or isinstance(objects[0], str)
    for position, value in enumerate(objects):
        if not (isinstance(value, str) if is_text else _is_int64(value)):
            raise InputError(
                f"{_row(values, position)}: {column} is {value!r}; "
                f"a {column} is text or an integer of 64 bits, alike in all rows"
            )
    return pd.Series(objects, index=values.index, dtype="str" if is_text else np.int64)


def _is_int64(value: object) -> bool:
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    return is_integer and INT64.min <= value <= INT64.max  # type: ignore[operator]
