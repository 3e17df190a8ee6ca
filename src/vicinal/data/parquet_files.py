"""Parquet files of tables and embeddings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from vicinal.utils.arrays import Floats
from vicinal.utils.errors import InputError, one_line, unreadable
from vicinal.utils.files import check_regular_file, write_bytes
from vicinal.utils.memory import check_memory

EMBEDDING = "embedding"
BATCH_NUMBERS = 2**20  # of embeddings that are read block by block
STREAMED: dict[str, Any] = {"pre_buffer": False, "buffer_size": 2**20}  # else Arrow reads whole groups of rows
BYTES_PER_NUMBER = 12  # of embeddings, with the copies that are made while they are read
IS_LIST_TYPE = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
MAX_ROWS, ROWS_PER_BYTE = 1_000_000, 20  # of a table: more rows than either of them allows are refused
BYTES_PER_CELL = 100  # of a table, with the objects of Python that are made while it is checked


def read_parquet(path: Path) -> pd.DataFrame:
    """Read all columns of a Parquet file but the embeddings, which :func:`vicinal.data.load_embeddings` reads.

    Raises:
        InputError: The file cannot be read, has no rows, or needs more memory than is available.
    """
    frame = read_frame(path)
    if not len(frame):
        raise InputError(f"{path}: a table without rows")
    return frame


def read_frame(path: Path, content: bytes | None = None) -> pd.DataFrame:
    """Read all columns of a Parquet file but the embeddings, and any number of rows.

    Columns of text are read with every text once, since a few bytes of a file can stand for a text in millions of rows.

    Args:
        path: The file.
        content: The bytes of the file, if they are read already.

    Raises:
        InputError: The file cannot be read, or needs more memory than is available.
    """
    with open_parquet(path, content=content) as file:
        schema, rows = file.schema_arrow, file.metadata.num_rows
        columns = [name for name in schema.names if name != EMBEDDING]
        _check_rows(path, rows, path.stat().st_size if content is None else len(content))
        check_memory(BYTES_PER_CELL * num_values(file, columns), str(path))
    if not columns:
        return pd.DataFrame(index=range(rows))
    texts = [name for name in columns if _is_text(schema.field(name).type)]
    with open_parquet(path, texts, content) as file:
        table = file.read(columns)
        table.validate(full=True)  # otherwise text that is not UTF-8 raises an error only where it is first used
        check_memory(2 * _text_bytes(table), str(path))
        table = table.cast(pa.schema([schema.field(name) for name in columns], schema.metadata))
        return table.to_pandas(ignore_metadata=True)


def _check_rows(path: Path, rows: int, size: int) -> None:
    """Raise InputError for far more rows than the bytes of a file can tell apart: each costs time."""
    if rows > max(MAX_ROWS, ROWS_PER_BYTE * size):
        raise InputError(
            f"{path}: says that it has {rows:,} rows in {size / 1e6:,.3f} MB; more than {MAX_ROWS:,} rows "
            f"need a byte per {ROWS_PER_BYTE}"
        )


@contextmanager
def open_parquet(
    path: Path, read_dictionary: Sequence[str] = (), content: bytes | None = None, **options: Any
) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file for a block that reads it; errors in the block become an InputError that names the file.

    Args:
        path: The file.
        read_dictionary: The columns of text whose distinct texts are read, with their positions.
        content: The bytes of the file, if they are read already.
        options: Further ones of `pyarrow.parquet.ParquetFile`.
    """
    if content is None:
        check_regular_file(path)
    try:
        with path.open("rb") if content is None else BytesIO(content) as file:
            yield pq.ParquetFile(file, read_dictionary=list(read_dictionary), **options)
    except InputError:
        raise
    except Exception as error:  # Arrow and pandas raise many types of errors on damaged files and exotic columns
        if isinstance(error, OSError) and error.strerror:
            raise unreadable(path, error) from None
        raise InputError(f"{path}: not a Parquet file that can be read ({one_line(error)})") from None


def read_embedding_column(path: Path, content: bytes | None = None) -> npt.NDArray[np.floating]:
    """Read the embeddings `[n, dim]` of a Parquet file, as they are stored.

    Args:
        path: The file.
        content: The bytes of the file, if they are read already.

    Raises:
        InputError: The file cannot be read, or holds no embeddings of one dimension.
    """
    with open_parquet(path, content=content) as file:
        check_memory(BYTES_PER_NUMBER * _num_embedding_values(path, file), str(path))
        return _matrix(path, file.read([EMBEDDING])[EMBEDDING].combine_chunks())


def map_embedding_column(path: Path) -> Floats:
    """Read the embeddings of a Parquet file block by block into a temporary file that is mapped into memory.

    Returns:
        float32 `[n, dim]`, read-only.

    Raises:
        InputError: As of :func:`read_embedding_column`, or there is not enough space for the file.
    """
    from vicinal.utils.memory import temporary_map  # imports torch

    with open_parquet(path, **STREAMED) as file:
        rows = file.metadata.num_rows
        dim = _num_embedding_values(path, file) // max(rows, 1)
        batches = file.iter_batches(max(1, BATCH_NUMBERS // max(dim, 1)), columns=[EMBEDDING], use_threads=False)
        return temporary_map((_matrix(path, batch.column(0), dim) for batch in batches), (rows, dim), str(path))


def _num_embedding_values(path: Path, file: pq.ParquetFile) -> int:
    """How many numbers the embeddings of a file have, if there are any."""
    names = file.schema_arrow.names
    if EMBEDDING not in names:
        raise InputError(f"{path}: no column {EMBEDDING!r}; its columns are {', '.join(names)}")
    return num_values(file, [EMBEDDING])


def _matrix(path: Path, column: pa.Array, dim: int | None = None) -> npt.NDArray[np.floating]:
    """A column of lists as an array; `dim` is the dimension of those before, if there are some."""
    if not any(is_list(column.type) for is_list in IS_LIST_TYPE) or column.null_count:
        raise InputError(
            f"{path}: {EMBEDDING} is {column.type} with {column.null_count} empty; it must be lists of numbers"
        )
    lengths = {*pc.unique(pc.list_value_length(column)).to_pylist(), *([] if dim is None else [dim])}
    if len(lengths) > 1:
        raise InputError(f"{path}: embeddings have {min(lengths)} to {max(lengths)} dimensions; all need the same")
    return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), *lengths)


def num_values(file: pq.ParquetFile, columns: Sequence[str]) -> int:
    """The number of values in these columns, in lists too, that the footer of the file tells."""
    metadata, total = file.metadata, 0
    flat = [name for name in columns if not pa.types.is_nested(file.schema_arrow.field(name).type)]
    for number in range(metadata.num_row_groups if flat else 0):
        # raises an error on a damaged footer, where the reading of the numbers below would end the process
        next(file.iter_batches(batch_size=1, row_groups=[number], columns=flat), None)
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        chunks = map(group.column, range(group.num_columns))
        total += sum(each.num_values for each in chunks if each.path_in_schema.partition(".")[0] in columns)
    return int(total)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _text_bytes(table: pa.Table) -> int:
    """The size of all texts in columns of distinct texts, once every row holds its own."""
    chunks = [chunk for column in table.columns for chunk in column.chunks if pa.types.is_dictionary(chunk.type)]
    texts = [chunk for chunk in chunks if _is_text(chunk.type.value_type)]
    sizes = (pc.sum(pc.take(pc.binary_length(chunk.dictionary), chunk.indices)).as_py() for chunk in texts)
    return sum(size or 0 for size in sizes)


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


def with_metadata(table: pa.Table, key: bytes, value: str) -> pa.Table:
    """The table with one more entry in the metadata of its schema, which :func:`read_metadata` reads."""
    return table.replace_schema_metadata({**(table.schema.metadata or {}), key: value.encode()})


def read_metadata(path: Path, key: bytes) -> str | None:
    """An entry in the metadata of a Parquet file's schema; None if there is no such entry.

    Raises:
        InputError: It is not a Parquet file.
    """
    with open_parquet(path) as file:
        stored = (file.schema_arrow.metadata or {}).get(key)
    return None if stored is None else stored.decode(errors="replace")


def write_arrow(path: Path, table: pa.Table) -> None:
    """Write an Arrow table atomically to a Parquet file."""
    buffer = BytesIO()
    pq.write_table(table, buffer)
    write_bytes(path, buffer.getvalue())
