"""Files of benchmarks as they are published: lists of images, bounding boxes, JSON, and pickles of plain data."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Collection, Iterable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from vicinal.data.columns import PUBLISHED_BOX_COLUMNS, Box, is_box
from vicinal.utils.errors import InputError, one_line
from vicinal.utils.files import read_bytes

Row = tuple[int, list[str]]
"""The number of a line, from 1, and its fields."""
MULTIARRAY = ("numpy.core.multiarray", "numpy._core.multiarray")
ALLOWED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),
    ("__builtin__", "bytes"),
    ("builtins", "bytes"),
    *((module, name) for module in MULTIARRAY for name in ("_reconstruct", "scalar")),
    *((module, "_frombuffer") for module in ("numpy.core.numeric", "numpy._core.numeric")),
}
MAX_DEPTH = 100  # of nested values


def read_list(
    path: Path, num_fields: tuple[int, ...], num_headers: int = 0, separator: str | None = None, distinct: bool = True
) -> list[Row]:
    """Read the lines of a list that are not empty: their numbers, from 1, and their fields.

    `num_fields` are the numbers of fields in the first lines; the last one also applies to all further lines. At least
    one image must follow the headers. By default, fields are separated by any number of spaces, and no two lines have
    the same first field.
    """
    try:
        lines = read_bytes(path).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text") from None
    rows = [(number, line.strip().split(separator)) for number, line in enumerate(lines, 1) if line.strip()]
    for position, (number, row) in enumerate(rows):
        expected = num_fields[min(position, len(num_fields) - 1)]
        if len(row) != expected:
            raise InputError(f"{path}, line {number}: {len(row)} fields where there must be {expected}")
    if len(rows) <= num_headers:
        raise InputError(f"{path}: names no image")
    if distinct:
        check_distinct(path, rows)
    return rows


def check_distinct(path: Path, rows: Sequence[Row], unit: str = "line") -> None:
    """Check that no two lines of a list have the same first field, the name of an image. The unit is the word for a
    line.
    """
    first: dict[str, int] = {}
    for number, (name, *_) in rows:
        if first.setdefault(name, number) != number:
            raise InputError(f"{path}, {unit} {number}: {name} appears twice, first in {unit} {first[name]}")


def read_by_id(path: Path, num_fields: int, ids: Collection[str] | None = None) -> dict[str, list[str]]:
    """Read a list whose first field identifies the line: id -> the other fields. The `ids` must occur."""
    found = {name: fields for _, (name, *fields) in read_list(path, (num_fields,))}
    missing = [name for name in ids or () if name not in found]
    if missing:
        more = f", nor for {len(missing) - 1:,} others" if len(missing) > 1 else ""
        raise InputError(f"{path}: no line for {missing[0]}{more}; the copy is partial or another version")
    return found


def class_number(text: str, where: str) -> int:
    """The number of a class in a field of a list."""
    if not re.fullmatch("[0-9]{1,18}", text):  # a 64-bit integer; Python refuses to parse very long ones
        raise InputError(f"{where}: {text[:40]!r} is not an integer of up to 18 digits")
    return int(text)


def parse_box(fields: Sequence[object], where: str, has_size: bool = False) -> Box:
    """The left, top, right and bottom edge of a box in pixels; with `has_size`, from width and height."""
    try:
        x_1, y_1, x_2, y_2 = (float(str(field)) for field in fields)
    except ValueError:
        raise InputError(f"{where}: the bounding box {' '.join(map(str, fields))!r} is not four numbers") from None
    box = (x_1, y_1, x_1 + x_2, y_1 + y_2) if has_size else (x_1, y_1, x_2, y_2)
    if not is_box(*box):
        raise InputError(
            f"{where}: the bounding box from ({box[0]:g}, {box[1]:g}) to ({box[2]:g}, {box[3]:g}) is empty or "
            "outside of its image"
        )
    return box


def box_columns(boxes: Iterable[Box]) -> dict[str, tuple[float, ...]]:
    """The columns `box_x_1`, `box_y_1`, `box_x_2`, `box_y_2`, to which images are not cropped."""
    return dict(zip(PUBLISHED_BOX_COLUMNS, zip(*boxes, strict=True), strict=True))


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    content = read_bytes(path)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({error})") from None


def read_plain_pickle(path: Path) -> Any:
    """Read the value in a pickle of plain data, written by Python 2 or 3.

    A pickle is a program that may call any function that it names. Of the names, only those of NumPy's constructors are
    looked up. The value is a dict, list, str, int, float, bool, None or NumPy array; tuples and arrays of text or
    objects become lists. Anything else is an InputError.
    """
    content = BytesIO(read_bytes(path))
    try:
        return _to_plain(_PlainUnpickler(content, encoding="latin1").load(), {})
    except Exception as error:  # a damaged file can raise many types of errors
        raise InputError(f"{path}: not a pickle of plain data ({one_line(error)})") from None


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {f'{module}.{name}'[:100]!r}")
        found = super().find_class(module, name)
        # A pickle may set attributes of a function that it is given, so each file gets functions of its own.
        return found if isinstance(found, type) else lambda *arguments: found(*arguments)


def _to_plain(value: Any, seen: dict[int, Any], depth: int = 0) -> Any:
    """Lists in place of tuples and of arrays of text or objects; a value that occurs twice is converted once."""
    if depth > MAX_DEPTH:
        raise ValueError(f"its values are nested more than {MAX_DEPTH} levels deep")
    if id(value) not in seen:
        seen[id(value)] = _convert(value, seen, depth + 1)
    return seen[id(value)]


def _convert(value: Any, seen: dict[int, Any], depth: int) -> Any:
    if type(value) is np.ndarray and value.dtype.kind in "biuf":
        return value
    if type(value) is np.ndarray and value.dtype.kind in "SUO":
        value = [each.decode("latin1") if isinstance(each, bytes) else each for each in value.ravel().tolist()]
    if type(value) is dict and all(type(key) is str for key in value):
        return {key: _to_plain(item, seen, depth) for key, item in value.items()}
    if type(value) in (list, tuple):
        return [_to_plain(item, seen, depth) for item in value]
    if isinstance(value, np.number | np.bool_ | np.str_):
        return value.item()
    if value is None or type(value) in (str, int, float, bool):
        return value
    raise ValueError(f"it holds a {type(value).__name__}")
