"""Tables in CSV and Parquet files. An error in a CSV file names the line."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd

from vicinal.data.columns import is_label_column
from vicinal.utils.errors import InputError, unreadable
from vicinal.utils.files import write_bytes

INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")


def read_csv(path: Path) -> pd.DataFrame:
    """Read a CSV file with a header. Cells are text, but label columns of integers only are converted to integers.

    The index holds the line number of each row, so that later errors can name it.

    Raises:
        InputError: The file cannot be read, is not UTF-8, or has a line with too few or too many fields.
    """
    rows = list(_rows(path))
    if not rows:
        raise InputError(f"{path}: empty file; the first line names the columns, such as path,label")
    header, lines = rows[0][1], pd.Index([line for line, _ in rows[1:]], name="line")
    for line, row in rows[1:]:
        if len(row) != len(header):
            raise InputError(
                f"{path}, line {line}: {len(row)} fields where the header has {len(header)} ({', '.join(header)})"
            )
    if not len(lines):
        raise InputError(f"{path}: a header and no rows")
    frame = pd.DataFrame([row for _, row in rows[1:]], index=lines, columns=header, dtype="str")
    return frame if frame.columns.duplicated().any() else _convert_integers(frame)


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the line where each row ends, and its cells. Empty lines are skipped."""
    text = _content(path)
    try:
        reader = csv.reader(StringIO(text.decode("utf-8-sig"), newline=""), strict=True)
        yield from ((reader.line_num, row) for row in reader if row)
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}, line {line}: not UTF-8 text; save the file as UTF-8") from None
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: {error}") from None


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from None


def _convert_integers(frame: pd.DataFrame) -> pd.DataFrame:
    """Convert the label columns in which every cell is an integer without leading zeros."""
    for column in filter(is_label_column, frame.columns):
        if all(INTEGER.fullmatch(cell) for cell in frame[column]):
            frame[column] = frame[column].astype(np.int64)
    return frame


def write_table(path: Path, frame: pd.DataFrame) -> None:
    """Write the frame atomically to a .csv or .parquet file.

    Raises:
        InputError: The name ends otherwise, or Parquet cannot hold a column.
    """
    if path.suffix.lower() == ".csv":
        # Text is quoted, since pandas by itself quotes only the line terminator in use and not the other ones.
        text = frame.to_csv(index=False, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        write_bytes(path, text.encode())
    elif path.suffix.lower() == ".parquet":
        from vicinal.data.parquet_files import to_arrow, write_arrow  # imports pyarrow

        write_arrow(path, to_arrow(path, frame))
    else:
        raise InputError(f"{path}: a table is written to a file ending in .csv or .parquet")
