"""Files of embeddings with the table of the images that they belong to."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from vicinal.data import parquet_files
from vicinal.data.checks import check_embeddings
from vicinal.data.columns import BOX_COLUMNS
from vicinal.data.embedding_shards import EmbeddingShards
from vicinal.data.table import Table
from vicinal.data.table_files import TABLE_SUFFIX, read_csv, write_table
from vicinal.utils.arrays import Floats
from vicinal.utils.errors import InputError, one_line, prefixed_errors, raise_if_of_system
from vicinal.utils.files import check_regular_file, write_bytes

MAX_CODE_POINT, SURROGATES = 0x10FFFF, (0xD800, 0xDFFF)
ENGINE_KEY = b"vicinal_engine"


def open_npy(path: Path) -> npt.NDArray[Any]:
    """Open an array as a memory map, which allocates nothing for rows that only the header claims."""
    check_regular_file(path)
    try:
        with np.errstate(over="raise"):
            array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # NumPy raises many types of errors on damaged headers
        raise_if_of_system(error, path)
        raise InputError(f"{path}: not a complete .npy file of numbers ({one_line(error, 120)})") from None
    if not array.ndim:
        raise InputError(f"{path}: one value of type {array.dtype}; it must be an array with a row for each image")
    return array


def read_npy_labels(path: Path) -> npt.NDArray[Any]:
    """Read labels: integers or text, one per row."""
    mapped = open_npy(path)
    if mapped.ndim != 1 or mapped.dtype.kind not in "iuU" or not len(mapped):
        raise InputError(f"{path}: {mapped.dtype} {list(mapped.shape)}; labels are integers or text, one per row")
    labels = np.array(mapped)  # stays valid if the file is changed
    if labels.dtype.kind == "U" and labels.itemsize:
        characters = labels.view(np.dtype(np.uint32).newbyteorder(labels.dtype.byteorder)).reshape(len(labels), -1)
        is_invalid = (characters > MAX_CODE_POINT) | ((characters >= SURROGATES[0]) & (characters <= SURROGATES[1]))
        for row in np.flatnonzero(is_invalid.any(axis=1)):  # which Python cannot decode
            raise InputError(f"{path}: the label of row {row} is not Unicode text; write the labels again")
    return labels


def save_embeddings(
    path: str | Path,
    vectors: npt.NDArray[np.floating],
    table: Table,
    fingerprint: str | None = None,
    engine: str | None = None,
) -> None:
    """Write embeddings and their table.

    Args:
        path: `.parquet` for one file with the columns of the table and `embedding`, a list of float32; or `.npy` for
            the embeddings alone, with the table in a file beside it (`vectors.table.csv` for `vectors.npy`).
        vectors: `[n, dim]`, stored as float32.
        table: The table, with n rows.
        fingerprint: The fingerprint of the model that computed the embeddings, if known; a `.npy` file cannot hold it.
        engine: The engine that ran the model, if known, such as torch or openvino; a `.npy` file cannot hold it either.

    Raises:
        InputError: The shape is different, the embeddings are not finite or not one per row, or the name has another
            suffix.
        OSError: A file cannot be written.

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
    vectors = check_embeddings(vectors, len(table), "vectors")
    if path.suffix.lower() == ".parquet":
        written = parquet_files.embedding_table(path, table.frame, vectors)
        for key, value in ((parquet_files.FINGERPRINT_KEY, fingerprint), (ENGINE_KEY, engine)):
            written = written if value is None else parquet_files.with_metadata(written, key, value)
        parquet_files.write_arrow(path, written)
    elif path.suffix.lower() == ".npy":
        _write_npy(path, vectors, table)
    else:
        raise InputError(f"{path}: embeddings are written to a file ending in .parquet or .npy")


def load_embeddings(path: str | Path, mapped: bool = False) -> tuple[Floats, Table]:
    """Read embeddings and their table from a file that :func:`save_embeddings` wrote, or one of the same form.

    A folder of shards, as `vicinal embed --shard` writes it, is read part by part.

    The table of `vectors.npy` is `vectors.table.csv` or, if that does not exist, `vectors.csv`; without either, it has
    no columns.

    Args:
        path: The file or folder.
        mapped: Whether the embeddings are mapped into memory, read-only, instead of copied: a `.npy` file of float32
            from itself, which must not change meanwhile; any other from a temporary file that they are written to
            block by block, in the folder that the environment variable `TMPDIR` names.

    Returns:
        The embeddings `[n, dim]`, float32, and the table with n rows.

    Raises:
        InputError: The file does not exist or holds no embeddings, or they are not finite or not one per row.
    """
    if Path(path).is_dir():
        vectors, frame = EmbeddingShards.open(path).load(mapped)
        return vectors, _table(Path(path), frame)
    path = _embeddings_file(path)
    if path.suffix.lower() == ".npy":
        return _load_npy(path, mapped)
    frame = parquet_files.read_parquet(path)
    return check_embeddings(_read_column(path, mapped), len(frame), str(path), mapped), _table(path, frame)


def load_vectors(path: str | Path, mapped: bool = False) -> Floats:
    """Read the embeddings `[n, dim]` from a .npy or .parquet file, or a folder of shards, without any table.

    Args:
        path: The file or folder.
        mapped: As of :func:`load_embeddings`.

    Raises:
        InputError: The file does not exist or holds no embeddings, or they are not finite.
    """
    if Path(path).is_dir():
        return EmbeddingShards.open(path).load(mapped)[0]
    path = _embeddings_file(path)
    vectors = open_npy(path) if path.suffix.lower() == ".npy" else _read_column(path, mapped)
    return check_embeddings(vectors, len(vectors), str(path), mapped)


def _read_column(path: Path, mapped: bool) -> npt.NDArray[np.floating]:
    return parquet_files.map_embedding_column(path) if mapped else parquet_files.read_embedding_column(path)


def load_labels(path: str | Path, path_column: str | None = None, label_column: str = "label") -> Table:
    """Read the labels of embeddings from a file of their own.

    Args:
        path: A .csv or .parquet table with a column `label` and any others; or a .npy file with one integer or text
            per row.
        path_column: The column of image paths in a table; None if it needs none.
        label_column: The column of labels in a table.

    Raises:
        InputError: The file does not exist, is of another type or holds no labels, or a column does not exist.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.save(f"{folder}/labels.npy", np.array([3, 3, 7]))
        ...     load_labels(f"{folder}/labels.npy").classes
        [3, 7]
    """
    path = Path(path)
    check_regular_file(path)
    if path.suffix.lower() == ".csv":
        return Table.from_csv(path, path_column=path_column, label_column=label_column)
    if path.suffix.lower() == ".parquet":
        return Table.from_parquet(path, path_column=path_column, label_column=label_column)
    if path.suffix.lower() != ".npy":
        raise InputError(f"{path}: labels are read from a file ending in .csv, .parquet or .npy")
    if path_column is not None or label_column != "label":
        raise InputError(f"{path}: a .npy file of labels has no columns; leave out path_column and label_column")
    return _table(path, pd.DataFrame({"label": read_npy_labels(path)}))


def read_own_images(path: str | Path) -> pd.DataFrame:
    """The columns of paths and bounding boxes in the table of a file or folder of embeddings; without paths, none."""
    path = Path(path)
    if path.is_dir():
        frame = pd.concat(
            [parquet_files.read_frame(part) for part, _ in EmbeddingShards.open(path).files()], ignore_index=True
        )
    elif path.suffix.lower() == ".npy":
        table_path = path.with_suffix(TABLE_SUFFIX)
        frame = read_csv(table_path) if table_path.is_file() else pd.DataFrame()
    else:
        frame = parquet_files.read_parquet(path)
    is_known = "path" in frame and pd.api.types.is_string_dtype(frame["path"]) and frame["path"].notna().all()
    columns = [column for column in ("path", *BOX_COLUMNS) if column in frame] if is_known else []
    return frame[columns].reset_index(drop=True)


def read_fingerprint(path: str | Path) -> str | None:
    """Read the fingerprint of the model that computed the embeddings in a file; None if the file does not hold it.

    A `.npy` file cannot hold it, and other programs do not keep it when they write a Parquet file.

    Raises:
        InputError: Its name ends in .parquet, and it does not exist or is not a Parquet file.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_embeddings(f"{folder}/vectors.parquet", np.eye(2), Table(pd.DataFrame(index=range(2))), "0123abcd")
        ...     read_fingerprint(f"{folder}/vectors.parquet")
        '0123abcd'
    """
    path = Path(path)
    if path.is_dir():
        return EmbeddingShards.open(path).model
    return (
        parquet_files.read_metadata(path, parquet_files.FINGERPRINT_KEY) if path.suffix.lower() == ".parquet" else None
    )


def _embeddings_file(path: str | Path) -> Path:
    path = Path(path)
    check_regular_file(path)
    if path.suffix.lower() not in (".npy", ".parquet"):
        raise InputError(f"{path}: embeddings are read from a file ending in .parquet or .npy")
    return path


def _table(path: Path, frame: pd.DataFrame) -> Table:
    """The table of a frame that was read from a file, which errors name."""
    with prefixed_errors(path):
        return Table(frame, path.parent)


def _write_npy(path: Path, vectors: Floats, table: Table) -> None:
    buffer = BytesIO()
    np.save(buffer, vectors)
    table_path = path.with_suffix(TABLE_SUFFIX)
    if len(table.frame.columns):
        write_table(table_path, table.frame)
    else:
        table_path.unlink(missing_ok=True)
    write_bytes(path, buffer.getvalue())


def _load_npy(path: Path, mapped: bool) -> tuple[Floats, Table]:
    vectors = open_npy(path)
    for table_path in (path.with_suffix(TABLE_SUFFIX), path.with_suffix(".csv")):
        if table_path.is_file():
            frame = read_csv(table_path)
            source = f"{path} with {table_path.name}"
            return check_embeddings(vectors, len(frame), source, mapped), _table(table_path, frame)
    vectors = check_embeddings(vectors, len(vectors), str(path), mapped)
    return vectors, Table(pd.DataFrame(index=range(len(vectors))))
