"""Parquet files of tables and embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from vicinal.utils.errors import InputError, one_line, unreadable
from vicinal.utils.files import write_bytes

EMBEDDING = "embedding"


def read_parquet(path: Path) -> pd.DataFrame:
    """Read all columns of a Parquet file but the embeddings, which :func:`vicinal.data.load_embeddings` reads.

    Raises:
        InputError: The file cannot be read or has no rows.
    """
    with open_parquet(path) as file:
        rows = file.metadata.num_rows
        columns = [name for name in file.schema_arrow.names if name != EMBEDDING]
        table = file.read(columns)
        table.validate(full=True)  # otherwise text that is not UTF-8 raises an error only where it is first used
        frame = table.to_pandas(ignore_metadata=True)
    if not rows:
        raise InputError(f"{path}: a table without rows")
    return frame if len(columns) else pd.DataFrame(index=range(rows))


@contextmanager
def open_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file for a block that reads it; errors in the block become an InputError that names the file."""
    try:
        with path.open("rb") as file:
            yield pq.ParquetFile(file)
    except InputError:
        raise
    except Exception as error:  # Arrow and pandas raise many types of errors on damaged files and exotic columns
        if isinstance(error, OSError) and error.strerror:
            raise unreadable(path, error) from None
        raise InputError(f"{path}: not a Parquet file that can be read ({one_line(error)})") from None


def to_arrow(path: Path, frame: pd.DataFrame) -> pa.Table:
    """Convert the frame to an Arrow table, in which each column holds values of one type.

    Raises:
        InputError: A column holds values of several or unknown types; the message names the column and `path`.
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
    """Write an Arrow table atomically to a Parquet file."""
    buffer = BytesIO()
    pq.write_table(table, buffer)
    write_bytes(path, buffer.getvalue())
