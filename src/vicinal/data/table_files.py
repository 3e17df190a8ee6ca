"""Tables in CSV and Parquet files. An error in a CSV file names the line."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Iterator
from io import StringIO
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd

from vicinal.data.columns import BOX_COLUMNS, is_known_column, is_label_column
from vicinal.utils.errors import InputError
from vicinal.utils.files import read_bytes, write_bytes

TABLE_SUFFIX = ".table.csv"  # of the table beside embeddings; .csv may be a file of the user's own
DIGEST_KEY = b"vicinal_table"  # in the metadata of a Parquet file's schema
INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")  # -0 and 007 are text, since they would not be written back the same
BLOCK_ROWS = 2**16  # rows that are Python objects at a time
CSV_ERRORS = {
    "field larger": f"a field of more than {csv.field_size_limit():,} characters; a quotation mark may be missing",
    "line contains NUL": "a null character; save the file as text",
    "new-line character seen": "a carriage return in a field; put the field in quotation marks",
    "unexpected end": "the last field begins with a quotation mark that is never closed",
    "',' expected after": "text after a closing quotation mark; double the quotation marks within a field",
}
"""How errors of the module csv begin, and what they mean."""


def read_csv(path: Path) -> pd.DataFrame:
    """Read a CSV file with a header. Cells are text, but label columns of integers only are converted to integers.

    The index holds the line number of each row, so that later errors can name it.
    """
    rows = _rows(path)
    _, header = next(rows, (0, []))
    if not header:
        raise InputError(f"{path}: empty file; the first line names the columns, such as path,label")
    _check_separator(path, header)
    # a column of a frame takes far less memory than its cells as objects of Python, so that few are made at a time
    blocks = iter(lambda: list(islice(rows, BLOCK_ROWS)), [])
    frames = [_frame(path, header, block) for block in blocks]
    if not frames:
        raise InputError(f"{path}: a header and no rows")
    frame = pd.concat(frames) if len(frames) > 1 else frames[0]
    return frame if frame.columns.duplicated().any() else _convert_integers(frame)


def _frame(path: Path, header: list[str], rows: list[tuple[int, list[str]]]) -> pd.DataFrame:
    """A frame of some rows with the numbers of their lines."""
    for line, row in rows:
        if len(row) != len(header):
            raise InputError(
                f"{path}, line {line}: {len(row)} fields where the header has {len(header)} ({', '.join(header)})"
            )
    lines = pd.Index([line for line, _ in rows], name="line")
    return pd.DataFrame([row for _, row in rows], index=lines, columns=header, dtype="str")


def _check_separator(path: Path, header: list[str]) -> None:
    """Raise InputError if the columns are separated by something else than commas, as spreadsheets may write them."""
    for name, separator in (("semicolons", ";"), ("tabulators", "\t")):
        if len(header) == 1 and separator in header[0]:
            raise InputError(f"{path}: the columns are separated by {name}; separate them by commas")


def column_names(path: Path) -> list[str]:
    """The names of the columns of a .csv or .parquet file."""
    if path.suffix.lower() == ".csv":
        return next(_rows(path), (0, []))[1]
    from vicinal.data.parquet_files import open_parquet  # imports pyarrow

    with open_parquet(path) as file:
        return list(file.schema_arrow.names)


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the line where each row ends, and its cells. Empty lines are skipped."""
    text = read_bytes(path)
    try:
        reader = csv.reader(StringIO(text.decode("utf-8-sig"), newline=""), strict=True)
        yield from ((reader.line_num, row) for row in reader if row)
    except UnicodeDecodeError as error:
        line = text.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}, line {line}: not UTF-8 text; save the file as UTF-8") from None
    except csv.Error as error:
        reasons = [reason for start, reason in CSV_ERRORS.items() if str(error).startswith(start)]
        raise InputError(f"{path}, line {reader.line_num}: {reasons[0] if reasons else error}") from None


def _convert_integers(frame: pd.DataFrame) -> pd.DataFrame:
    """Convert the label columns in which every cell is an integer without leading zeros."""
    for column in filter(is_label_column, frame.columns):
        if all(INTEGER.fullmatch(cell) for cell in frame[column]):
            frame[column] = frame[column].astype(np.int64)
    return frame


def write_table(path: Path, frame: pd.DataFrame) -> None:
    """Write the frame atomically to a .csv or .parquet file; the latter holds :func:`frame_digest` too."""
    if path.suffix.lower() == ".csv":
        # Text is quoted, since pandas by itself quotes only the line terminator in use and not the other ones.
        text = frame.to_csv(index=False, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        write_bytes(path, text.encode())
    elif path.suffix.lower() == ".parquet":
        from vicinal.data.parquet_files import to_arrow, with_metadata, write_arrow  # imports pyarrow

        write_arrow(path, with_metadata(to_arrow(path, frame), DIGEST_KEY, frame_digest(frame)))
    else:
        raise InputError(f"{path}: a table is written to a file ending in .csv or .parquet")


def frame_digest(frame: pd.DataFrame) -> str:
    """Identifies the rows of a table, in their order, by the columns that have a meaning."""
    boxes = BOX_COLUMNS if set(BOX_COLUMNS) <= set(frame) else ()
    names = sorted(column for column in map(str, frame.columns) if is_known_column(column) or column in boxes)
    columns = {column: frame[column].tolist() for column in names}
    # A column of integers with missing values holds pandas.NA, which JSON does not know.
    return hashlib.sha256(json.dumps([len(frame), columns], default=str).encode()).hexdigest()
