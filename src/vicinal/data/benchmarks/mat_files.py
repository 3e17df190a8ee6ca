"""Lists of records in files of MATLAB, as some benchmarks publish their annotations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vicinal.data.benchmarks.lists import Row
from vicinal.utils.errors import InputError, one_line
from vicinal.utils.files import check_regular_file
from vicinal.utils.memory import check_memory

BYTES_PER_BYTE = 100  # of a compressed file, with the arrays that its records become


def read_records(path: Path, variable: str, fields: Sequence[str]) -> list[Row]:
    r"""Read the records of a struct array: their positions, from 1, and the wanted fields as text.

    Args:
        path: The file.
        variable: The name of the struct array.
        fields: The names of the fields; their order in the file does not matter.

    Raises:
        InputError: The file cannot be read, or has no such variable or field.
    """
    from scipy.io import loadmat

    check_regular_file(path)
    check_memory(BYTES_PER_BYTE * path.stat().st_size, str(path))
    try:
        records = loadmat(path, squeeze_me=True, variable_names=[variable]).get(variable)
    except Exception as error:  # a broken file makes the reader raise errors of many kinds
        raise InputError(f"{path}: is no file of MATLAB that can be read ({one_line(error)})") from None
    names = getattr(getattr(records, "dtype", None), "names", None) or ()
    missing = [field for field in fields if field not in names]
    if missing:
        there = f"the fields of its {variable} are {', '.join(names)}" if names else f"no list of records {variable}"
        raise InputError(f"{path}: has no {missing[0]}; {there}")
    columns = ([_text(value) for value in np.atleast_1d(records[field])] for field in fields)
    return [(number, list(row)) for number, row in enumerate(zip(*columns, strict=True), 1)]


def _text(value: object) -> str:
    """The text of a field; 7.0 becomes 7."""
    number = value.item() if isinstance(value, (np.generic, np.ndarray)) and value.size == 1 else value
    return f"{number:.15g}" if isinstance(number, float) else str(number)
