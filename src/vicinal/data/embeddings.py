"""Embeddings in files, together with the table of what they are embeddings of."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from vicinal.data.table import Table
from vicinal.data.table_files import (
    EMBEDDING,
    arrow_table,
    opened_parquet,
    read_csv,
    read_parquet,
    write_arrow,
    write_table,
)
from vicinal.errors import InputError
from vicinal.files import write_bytes

TABLE_SUFFIX = ".table.csv"  # not .csv, which may well be the user's own
MODEL = b"vicinal_model"  # key in the schema of a Parquet file for the fingerprint of the model
LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


def save_embeddings(
    path: str | Path, vectors: npt.NDArray[np.floating], table: Table, fingerprint: str | None = None
) -> None:
    """Write embeddings and their table.

    Args:
        path: `.parquet`: one file, the table's columns and `embedding`, a list of float32; or `.npy`: the vectors, with
            the table beside it (`vectors.table.csv` for `vectors.npy`).
        vectors: `[n, d]`, stored as float32.
        table: `n` rows.
        fingerprint: of the model that made the vectors, if it is known; a `.npy` file has no place for it.

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
    vectors = checked_vectors(vectors, len(table), "vectors")
    if path.suffix.lower() == ".parquet":
        write_arrow(path, _with_fingerprint(_with_vectors(path, table, vectors), fingerprint))
    elif path.suffix.lower() == ".npy":
        _write_npy(path, vectors, table)
    else:
        raise InputError(f"{path}: embeddings are written to a file ending in .parquet or .npy")


def load_embeddings(path: str | Path) -> tuple[npt.NDArray[np.float32], Table]:
    """Read embeddings and their table, as :func:`save_embeddings` writes them.

    The table of `vectors.npy` is `vectors.table.csv` or, if there is none, `vectors.csv`; without either it has no
    columns.

    Returns:
        Vectors `[n, d]`, float32, and a table of `n` rows.

    Raises:
        InputError: no such file, no embeddings in it, not one a row of the table, or not finite (with the row).
    """
    path = _existing(path)
    if path.suffix.lower() == ".npy":
        return _load_npy(path)
    frame = read_parquet(path)
    return checked_vectors(_embedding_column(path), len(frame), str(path)), Table(frame, path.parent)


def load_vectors(path: str | Path) -> npt.NDArray[np.float32]:
    """Read embeddings alone, `[n, d]`, from a .npy or .parquet file; no table that is there counts.

    Raises:
        InputError: no such file, no embeddings in it, or not finite (with the row).
    """
    path = _existing(path)
    vectors = _read_npy(path) if path.suffix.lower() == ".npy" else _embedding_column(path)
    return checked_vectors(vectors, len(vectors), str(path))


def load_labels(path: str | Path) -> Table:
    """Read the labels of embeddings that lie elsewhere.

    Args:
        path: a .csv or .parquet table with a column `label`, and any others; or a .npy file, one integer or text a row.

    Raises:
        InputError: no such file, another kind of file, or no labels in it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.save(f"{folder}/labels.npy", np.array([3, 3, 7]))
        ...     load_labels(f"{folder}/labels.npy").classes
        [3, 7]
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    if path.suffix.lower() in (".csv", ".parquet"):
        return Table.load(path, path_column=None)
    if path.suffix.lower() != ".npy":
        raise InputError(f"{path}: labels are read from a file ending in .csv, .parquet or .npy")
    labels = _read_npy(path)
    if labels.ndim != 1 or labels.dtype.kind not in "iuU" or not len(labels):
        raise InputError(f"{path}: {labels.dtype} {list(labels.shape)}; labels are integers or text, one a row")
    return Table(pd.DataFrame({"label": labels}))


def fingerprint_of(path: str | Path) -> str | None:
    """The fingerprint of the model that made a file's embeddings; None where the file does not say.

    A `.npy` file never says, and a Parquet file no longer does once another program has written it anew.

    Raises:
        InputError: no such file, or one that ends in .parquet and is none.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_embeddings(f"{folder}/vectors.parquet", np.eye(2), Table(pd.DataFrame(index=range(2))), "0123abcd")
        ...     fingerprint_of(f"{folder}/vectors.parquet")
        '0123abcd'
    """
    path = Path(path)
    if path.suffix.lower() != ".parquet":
        return None
    with opened_parquet(path) as file:
        stored = (file.schema_arrow.metadata or {}).get(MODEL)
    return None if stored is None else stored.decode(errors="replace")


def checked_vectors(vectors: npt.NDArray[np.floating], rows: int, where: str) -> npt.NDArray[np.float32]:
    """The vectors as float32 `[rows, d]`; an InputError that begins with `where` if they are no embeddings."""
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


def _existing(path: str | Path) -> Path:
    """The path of a file that may hold embeddings."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    if path.suffix.lower() not in (".npy", ".parquet"):
        raise InputError(f"{path}: embeddings are read from a file ending in .parquet or .npy")
    return path


def _with_vectors(path: Path, table: Table, vectors: npt.NDArray[np.float32]) -> pa.Table:
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
    frame = table.frame.drop(columns=EMBEDDING, errors="ignore")
    if not len(frame.columns):
        return pa.table({EMBEDDING: column})
    return arrow_table(path, frame).append_column(EMBEDDING, column)


def _with_fingerprint(table: pa.Table, fingerprint: str | None) -> pa.Table:
    if fingerprint is None:
        return table
    return table.replace_schema_metadata({**(table.schema.metadata or {}), MODEL: fingerprint.encode()})


def _embedding_column(path: Path) -> npt.NDArray[np.floating]:
    with opened_parquet(path) as file:
        names = file.schema_arrow.names
        if EMBEDDING not in names:
            raise InputError(f"{path}: no column {EMBEDDING!r}; its columns are {', '.join(names)}")
        column = file.read([EMBEDDING])[EMBEDDING].combine_chunks()
        if not any(is_list(column.type) for is_list in LISTS) or column.null_count:
            raise InputError(
                f"{path}: {EMBEDDING} is {column.type} with {column.null_count} empty; it must be lists of numbers"
            )
        lengths = pc.unique(pc.list_value_length(column)).to_pylist()
        if len(lengths) > 1:
            raise InputError(f"{path}: embeddings have {min(lengths)} to {max(lengths)} dimensions; all need the same")
        return column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), *lengths)


def _write_npy(path: Path, vectors: npt.NDArray[np.float32], table: Table) -> None:
    buffer = BytesIO()
    np.save(buffer, vectors)
    beside = path.with_suffix(TABLE_SUFFIX)
    if len(table.frame.columns):
        write_table(beside, table.frame)
    else:
        beside.unlink(missing_ok=True)
    write_bytes(path, buffer.getvalue())


def _load_npy(path: Path) -> tuple[npt.NDArray[np.float32], Table]:
    vectors = _read_npy(path)
    for beside in (path.with_suffix(TABLE_SUFFIX), path.with_suffix(".csv")):
        if beside.is_file():
            frame = read_csv(beside)
            return checked_vectors(vectors, len(frame), f"{path} with {beside.name}"), Table(frame, path.parent)
    return checked_vectors(vectors, len(vectors), str(path)), Table(pd.DataFrame(index=range(len(vectors))))


def _read_npy(path: Path) -> npt.NDArray[np.floating]:
    try:
        # Mapping takes no memory for rows that only the header claims; the copy outlives the file.
        with np.errstate(over="raise"):
            return np.array(np.lib.format.open_memmap(path, mode="r"))
    except (ValueError, OSError, EOFError, ArithmeticError) as error:
        raise InputError(f"{path}: not a whole .npy file of numbers ({str(error).splitlines()[0]})") from None
