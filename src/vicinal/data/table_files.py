"""Tables in CSV and Parquet files, read strictly: a mistake is named with its line."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO, StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from vicinal.data.columns import is_name_column
from vicinal.errors import InputError
from vicinal.files import write_bytes

EMBEDDING = "embedding"
INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,17})")


def read_csv(path: Path) -> pd.DataFrame:
    """All rows of a CSV file with a header; cells stay text, but names that are all integers become integers.

    The index holds each row's line number, so that later errors can name it.
    """
    rows = list(_csv_rows(path))
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
    return frame if frame.columns.duplicated().any() else with_integers(frame)


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Number of the line where a row ends, and its cells; empty lines are passed over."""
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
        raise _unopened(path, error) from None


def _unopened(path: Path, error: OSError) -> InputError:
    return InputError(f"{path}: {(error.strerror or str(error)).lower()}")


def with_integers(frame: pd.DataFrame) -> pd.DataFrame:
    """Turn columns of names whose every cell is plainly an integer into integers; 007 stays text."""
    for column in filter(is_name_column, frame.columns):
        if all(INTEGER.fullmatch(cell) for cell in frame[column]):
            frame[column] = frame[column].astype(np.int64)
    return frame


def read_parquet(path: Path) -> pd.DataFrame:
    """All columns of a Parquet file but the embeddings, which :func:`vicinal.data.load_embeddings` reads."""
    with opened_parquet(path) as file:
        rows = file.metadata.num_rows
        columns = [name for name in file.schema_arrow.names if name != EMBEDDING]
        table = file.read(columns)
        table.validate(full=True)  # else text that is not UTF-8 fails only where it is first used
        frame = table.to_pandas(ignore_metadata=True)
    if not rows:
        raise InputError(f"{path}: a table without rows")
    return frame if len(columns) else pd.DataFrame(index=range(rows))


@contextmanager
def opened_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file for a block that reads it; what goes wrong in there is an InputError that names the file."""
    try:
        with path.open("rb") as file:
            yield pq.ParquetFile(file)
    except InputError:
        raise
    except Exception as error:  # broken or exotic columns make Arrow and pandas raise whatever they stumble over
        if isinstance(error, OSError) and error.strerror:
            raise _unopened(path, error) from None
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"{path}: not a Parquet file that can be read ({reason})") from None


def renamed(frame: pd.DataFrame, path_column: str | None, label_column: str | None, where: str | Path) -> pd.DataFrame:
    """Give the columns that hold path and label these names; a former `path` or `label` makes way."""
    for standard, column in (("path", path_column), ("label", label_column)):
        if column is None or (column == standard and standard in frame):
            continue
        if column not in frame:
            raise InputError(
                f"{where}: no column {column!r}; the columns are {', '.join(map(str, frame.columns)) or 'none'} "
                f"(say {standard}_column=... to name another, or None for a table without)"
            )
        frame = frame.drop(columns=standard, errors="ignore").rename(columns={column: standard})
    return frame


def write_table(path: Path, frame: pd.DataFrame) -> None:
    """Write the frame atomically to .csv or .parquet.

    Raises:
        InputError: another ending, or a column that Parquet cannot hold.
    """
    if path.suffix.lower() == ".csv":
        # Quoted, for of the signs that end a line pandas by itself quotes only the one in use.
        text = frame.to_csv(index=False, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        write_bytes(path, text.encode())
    elif path.suffix.lower() == ".parquet":
        write_arrow(path, arrow_table(path, frame))
    else:
        raise InputError(f"{path}: a table is written to a file ending in .csv or .parquet")


def arrow_table(path: Path, frame: pd.DataFrame) -> pa.Table:
    """The frame for Parquet, which wants values of one type in a column.

    Raises:
        InputError: a column of mixed or unknown values, naming it and `path`, where it was to be written.
    """
    for column in frame.columns:
        try:
            pa.Array.from_pandas(frame[column])
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            reason = str(error.args[0]).splitlines()[0]
            raise InputError(
                f"{path}: Parquet cannot hold column {column!r} ({reason}); give its values one type"
            ) from None
    return pa.Table.from_pandas(frame, preserve_index=False)


def write_arrow(path: Path, table: pa.Table) -> None:
    buffer = BytesIO()
    pq.write_table(table, buffer)
    write_bytes(path, buffer.getvalue())
