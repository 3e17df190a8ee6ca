"""The folder of benchmark datasets. Files in it are written once and atomically."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
from filelock import FileLock

from vicinal.data.table import Table
from vicinal.data.table_files import write_table
from vicinal.utils.console import log
from vicinal.utils.errors import InputError
from vicinal.utils.files import replace_folder

TABLE = "table.csv"


def cache_folder(root: str | Path | None = None) -> Path:
    """The folder of all benchmarks: `root`, else the environment variable VICINAL_DATA, else ~/.cache/vicinal."""
    return Path(root or os.environ.get("VICINAL_DATA") or Path.home() / ".cache" / "vicinal")


def writable_root(root: Path, benchmark: str) -> Path:
    """The root, or the default folder if the root or the folder of the benchmark in it is not writable."""
    return root if _is_writable(root) and _is_writable(root / benchmark) else cache_folder()


def _is_writable(folder: Path) -> bool:
    """Whether the folder, or its first existing parent, has a write permission; it also binds the superuser."""
    while not folder.exists():
        folder = folder.absolute().parent
    return bool(folder.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)) and os.access(folder, os.W_OK)


def prepare_table(folder: Path, write: Callable[[Path], pd.DataFrame]) -> Table:
    """The table of a benchmark whose images are written on the first call.

    Args:
        folder: The folder of the images.
        write: A function that writes the images into the given folder and returns their table, with relative paths.

    Raises:
        InputError: The folder holds other files or cannot be written.
    """

    def fill(new: Path) -> None:
        write_table(new / TABLE, write(new))

    prepare_folder(folder, TABLE, fill)
    return Table.from_csv(folder / TABLE)


def prepare_folder(folder: Path, marker: str, fill: Callable[[Path], None]) -> None:
    """Fill a folder once and atomically, even if several processes call this at the same time or one is killed.

    Args:
        folder: The folder.
        marker: A file or folder in it that exists when it is complete.
        fill: A function that writes the content into the given empty folder.

    Raises:
        InputError: The folder holds other files or cannot be written.
    """
    if (folder / marker).exists():
        return
    with _write_errors(folder), FileLock(_create(folder.parent) / f".{folder.name}.lock"):
        if (folder / marker).exists():
            return
        if folder.exists() and any(folder.iterdir()):
            raise InputError(f"{folder}: would be filled with a benchmark but is not empty; choose another root")
        log(f"preparing {folder}")
        with replace_folder(folder) as new:
            fill(new)


def _create(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _write_errors(folder: Path) -> Iterator[None]:
    """Turn errors of writing into an InputError."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"{folder}: cannot be written ({reason}); choose another root, or another folder by VICINAL_DATA"
        ) from error
