"""Parquet files of tables and embeddings."""

from __future__ import annotations

from collections.abc import Iterator
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
from vicinal.utils.memory import temporary_map

EMBEDDING = "embedding"
FINGERPRINT_KEY = b"vicinal_model"  # in the metadata of a schema
BATCH_NUMBERS = 2**20  # numbers per block of embeddings
STREAMED: dict[str, Any] = {"pre_buffer": False, "buffer_size": 2**20}  # else Arrow reads whole groups of rows
IS_LIST_TYPE = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


def read_parquet(path: Path) -> pd.DataFrame:
    """Read all columns of a Parquet file but the embeddings, which :func:`vicinal.data.load_embeddings` reads."""
    frame = read_frame(path)
    if not len(frame):
        raise InputError(f"{path}: a table without rows")
    return frame


def read_frame(path: Path, content: bytes | None = None) -> pd.DataFrame:
    """Read all columns of a Parquet file, or of its bytes if they are read already, but the embeddings."""
    with open_parquet(path, content) as file:
        columns = [name for name in file.schema_arrow.names if name != EMBEDDING]
        if not columns:
            return pd.DataFrame(index=range(file.metadata.num_rows))
        table = file.read(columns)
        table.validate(full=True)  # otherwise text that is not UTF-8 raises an error only where it is first used
        return table.to_pandas(ignore_metadata=True)


@contextmanager
def open_parquet(path: Path, content: bytes | None = None, **options: Any) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file, or its bytes if they are read already, for a block that reads it.

    Errors in the block become an InputError that names the file. The options are those of
    `pyarrow.parquet.ParquetFile`.
    """
    if content is None:
        check_regular_file(path)
    try:
        with path.open("rb") if content is None else BytesIO(content) as file:
            yield pq.ParquetFile(file, page_checksum_verification=True, **options)
    except InputError:
        raise
    except Exception as error:  # Arrow and pandas raise many types of errors on damaged files and exotic columns
        if isinstance(error, OSError) and error.strerror:
            raise unreadable(path, error) from None
        raise InputError(f"{path}: not a readable Parquet file ({one_line(error)})") from None


def read_embedding_column(path: Path, content: bytes | None = None) -> npt.NDArray[np.floating]:
    """Read the embeddings `[n, dim]` of a Parquet file as they are stored."""
    with open_parquet(path, content) as file:
        _check_embeddings(path, file)
        return _matrix(path, file.read([EMBEDDING])[EMBEDDING].combine_chunks())


def map_embedding_column(path: Path) -> Floats:
    """Read the embeddings, float32 `[n, dim]`, block by block into a temporary file that is mapped into memory."""
    with open_parquet(path, **STREAMED) as file:
        rows = file.metadata.num_rows
        _check_embeddings(path, file)
        first = next(file.iter_batches(1, columns=[EMBEDDING]), None)
        dim = 0 if first is None else _matrix(path, first.column(0)).shape[1]
        batches = file.iter_batches(max(1, BATCH_NUMBERS // max(dim, 1)), columns=[EMBEDDING], use_threads=False)
        return temporary_map((_matrix(path, batch.column(0), dim) for batch in batches), (rows, dim), str(path))


def _check_embeddings(path: Path, file: pq.ParquetFile) -> None:
    names = file.schema_arrow.names
    if EMBEDDING not in names:
        raise InputError(f"{path}: no column {EMBEDDING!r}; its columns are {', '.join(names)}")


def _matrix(path: Path, column: pa.Array, dim: int | None = None) -> npt.NDArray[np.floating]:
    """A column of lists as an array; `dim` is the dimension of earlier lists, if any."""
    if not any(is_list(column.type) for is_list in IS_LIST_TYPE) or column.null_count:
        raise InputError(
            f"{path}: {EMBEDDING} is {column.type} with {column.null_count} empty; it must be lists of numbers"
        )
    lengths = {*pc.unique(pc.list_value_length(column)).to_pylist(), *([] if dim is None else [dim])}
    if len(lengths) > 1:
        raise InputError(f"{path}: embeddings have {min(lengths)} to {max(lengths)} dimensions; all need the same")
    return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), *lengths)


def to_arrow(path: Path, frame: pd.DataFrame) -> pa.Table:
    """Convert the frame to an Arrow table, in which each column holds values of one type."""
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
    """An entry in the metadata of a Parquet file's schema; None if there is no such entry."""
    with open_parquet(path) as file:
        stored = (file.schema_arrow.metadata or {}).get(key)
    return None if stored is None else stored.decode(errors="replace")


def write_arrow(path: Path, table: pa.Table) -> None:
    """Write an Arrow table atomically to a Parquet file, with a checksum of each page, which reading verifies."""
    buffer = BytesIO()
    pq.write_table(table, buffer, write_page_checksum=True)
    write_bytes(path, buffer.getvalue())


def embedding_table(path: Path, frame: pd.DataFrame, vectors: Floats) -> pa.Table:
    """The columns of a table and its embeddings in Arrow; errors name the file `path`."""
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    frame = frame.drop(columns=EMBEDDING, errors="ignore")
    if not len(frame.columns):
        return pa.table({EMBEDDING: column})
    return to_arrow(path, frame).append_column(EMBEDDING, column)
