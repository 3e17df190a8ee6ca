"""Arrays in .npy files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vicinal.utils.errors import InputError, one_line, raise_if_of_system
from vicinal.utils.files import check_regular_file
from vicinal.utils.memory import check_memory

MAX_CODE_POINT, SURROGATES = 0x10FFFF, (0xD800, 0xDFFF)
BYTES_PER_LABEL = 100  # of a table, with the objects of Python that are made while it is checked


def open_npy(path: Path) -> npt.NDArray[Any]:
    """Open an array as a memory map, which allocates nothing for rows that only the header claims.

    Raises:
        InputError: The file cannot be read, or holds no whole array.
    """
    check_regular_file(path)
    try:
        with np.errstate(over="raise"):
            array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # NumPy raises many types of errors on damaged headers
        raise_if_of_system(error, path)
        raise InputError(f"{path}: not a whole .npy file of numbers ({one_line(error, 120)})") from None
    if not array.ndim:
        raise InputError(f"{path}: one value of type {array.dtype}; it must be an array with a row for each image")
    return array


def read_npy_labels(path: Path) -> npt.NDArray[Any]:
    """Read labels: integers or text, one per row.

    Raises:
        InputError: The file cannot be read, holds other values, or text that is not Unicode.
    """
    mapped = open_npy(path)
    if mapped.ndim != 1 or mapped.dtype.kind not in "iuU" or not len(mapped):
        raise InputError(f"{path}: {mapped.dtype} {list(mapped.shape)}; labels are integers or text, one per row")
    check_memory(mapped.nbytes + BYTES_PER_LABEL * len(mapped), str(path))
    labels = np.array(mapped)  # stays valid if the file is changed
    if labels.dtype.kind == "U" and labels.itemsize:
        _check_characters(labels, path)
    return labels


def _check_characters(labels: npt.NDArray[np.str_], path: Path) -> None:
    characters = labels.view(np.dtype(np.uint32).newbyteorder(labels.dtype.byteorder)).reshape(len(labels), -1)
    low, high = SURROGATES
    is_invalid = (characters > MAX_CODE_POINT) | ((characters >= low) & (characters <= high))
    rows = np.flatnonzero(is_invalid.any(axis=1))
    if len(rows):
        raise InputError(f"{path}: the label of row {rows[0]} is not Unicode text; write the labels again")
