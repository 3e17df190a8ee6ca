"""Embeddings in files, together with the table of what they are embeddings of."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from vicinal.data.table import Table
from vicinal.data.table_files import EMBEDDING, read_csv, read_parquet, write_arrow, write_table
from vicinal.errors import InputError
from vicinal.files import write_bytes


def save_embeddings(path: str | Path, vectors: npt.NDArray[np.floating], table: Table) -> None:
    """Write embeddings and their table.

    Args:
        path: `.parquet`: one file, the table's columns and `embedding`, a list of float32; or `.npy`: the vectors, with
            the table in a `.csv` of the same stem beside it.
        vectors: `[n, d]`, stored as float32.
        table: `n` rows.

    Raises:
        InputError: vectors of another shape, too few or too many, or not finite (with the row); another ending.
        OSError: a file cannot be written.

    Example:
        >>> import tempfile
        >>> table = Table(pd.DataFrame({"label": ["cat", "dog"]}))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_embeddings(f"{folder}/vectors.parquet", np.eye(2), table)
        ...     vectors, same = load_embeddings(f"{folder}/vectors.parquet")
        >>> vectors.tolist(), same.classes
        ([[1.0, 0.0], [0.0, 1.0]], ['cat', 'dog'])
    """
    path = Path(path)
    vectors = _checked(vectors, len(table), "vectors")
    if path.suffix == ".parquet":
        write_arrow(path, _with_vectors(table, vectors))
    elif path.suffix == ".npy":
        _write_npy(path, vectors, table)
    else:
        raise InputError(f"{path}: embeddings are written to a file ending in .parquet or .npy")


def load_embeddings(path: str | Path) -> tuple[npt.NDArray[np.float32], Table]:
    """Read embeddings and their table, as :func:`save_embeddings` writes them.

    A `.npy` file without a `.csv` beside it gives a table without columns.

    Returns:
        Vectors `[n, d]`, float32, and a table of `n` rows.

    Raises:
        InputError: no such file, no embeddings in it, not one a row of the table, or not finite (with the row).
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    if path.suffix == ".npy":
        vectors = _read_npy(path)
        beside = path.with_suffix(".csv")
        frame = read_csv(beside) if beside.is_file() else pd.DataFrame(index=range(len(vectors)))
    elif path.suffix == ".parquet":
        frame = read_parquet(path)
        vectors = _embedding_column(path)
    else:
        raise InputError(f"{path}: embeddings are read from a file ending in .parquet or .npy")
    return _checked(vectors, len(frame), str(path)), Table(frame, path.parent)


def _checked(vectors: npt.NDArray[np.floating], rows: int, where: str) -> npt.NDArray[np.float32]:
    vectors = np.asarray(vectors)
    if vectors.ndim != 2 or vectors.dtype.kind not in "fiu" or not vectors.size:
        shape = list(vectors.shape)
        raise InputError(f"{where}: {vectors.dtype} {shape}; embeddings are real numbers [rows, dimensions]")
    if len(vectors) != rows:
        raise InputError(f"{where}: {len(vectors)} embeddings for a table of {rows} rows; there must be one a row")
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    broken = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(broken):
        others = f" (and {len(broken) - 1} other rows)" if len(broken) > 1 else ""
        raise InputError(f"{where}: the embedding of row {broken[0]}{others} is not finite; every number must be")
    return vectors


def _with_vectors(table: Table, vectors: npt.NDArray[np.float32]) -> pa.Table:
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    frame = table.frame.drop(columns=EMBEDDING, errors="ignore")
    if not len(frame.columns):
        return pa.table({EMBEDDING: column})
    return pa.Table.from_pandas(frame, preserve_index=False).append_column(EMBEDDING, column)


def _embedding_column(path: Path) -> npt.NDArray[np.floating]:
    if EMBEDDING not in pq.read_schema(path).names:
        raise InputError(f"{path}: no column {EMBEDDING!r}; its columns are {', '.join(pq.read_schema(path).names)}")
    column = pq.read_table(path, columns=[EMBEDDING])[EMBEDDING].combine_chunks()
    if not pa.types.is_nested(column.type) or column.null_count:
        raise InputError(
            f"{path}: {EMBEDDING} is {column.type} with {column.null_count} empty; it must be lists of numbers"
        )
    lengths = {len(vector) for vector in column} if not pa.types.is_fixed_size_list(column.type) else {0}
    if len(lengths) > 1:
        raise InputError(f"{path}: embeddings have {min(lengths)} to {max(lengths)} dimensions; all need the same")
    return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)


def _write_npy(path: Path, vectors: npt.NDArray[np.float32], table: Table) -> None:
    buffer = BytesIO()
    np.save(buffer, vectors)
    if len(table.frame.columns):
        write_table(path.with_suffix(".csv"), table.frame)
    else:
        path.with_suffix(".csv").unlink(missing_ok=True)
    write_bytes(path, buffer.getvalue())


def _read_npy(path: Path) -> npt.NDArray[np.floating]:
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"{path}: not a .npy file of numbers ({str(error).splitlines()[0]})") from None
