"""Where benchmarks keep their images: made once, whole or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
from filelock import FileLock

from vicinal.console import log
from vicinal.data.table import Table
from vicinal.data.table_files import write_table
from vicinal.errors import InputError
from vicinal.files import replacing_folder

TABLE = "table.csv"


def cache_folder(root: str | Path | None = None) -> Path:
    """The folder that keeps all benchmarks: `root`, else the environment's VICINAL_DATA, else ~/.cache/vicinal."""
    return Path(root or os.environ.get("VICINAL_DATA") or Path.home() / ".cache" / "vicinal")


def writable_root(root: Path, benchmark: str) -> Path:
    """The root itself, or the default folder where it, or the benchmark's folder in it, must not be written."""
    return root if _may_write(root) and _may_write(root / benchmark) else cache_folder()


def _may_write(folder: Path) -> bool:
    """A folder without a write bit is meant to stay as it is, even if the superuser could write it."""
    while not folder.exists():
        folder = folder.absolute().parent
    return bool(folder.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)) and os.access(folder, os.W_OK)


def prepared_table(folder: Path, write: Callable[[Path], pd.DataFrame]) -> Table:
    """The table of a benchmark, whose images are written at the first call.

    Args:
        folder: where the images are or will be.
        write: writes the images into the folder it is given and returns their table, with paths relative to it.

    Raises:
        InputError: the folder holds something else, or cannot be written.
    """

    def fill(new: Path) -> None:
        write_table(new / TABLE, write(new))

    prepare_folder(folder, TABLE, fill)
    return Table.from_csv(folder / TABLE)


def prepare_folder(folder: Path, mark: str, fill: Callable[[Path], None]) -> None:
    """Fill a folder once, though several processes ask for it together or one is killed midway.

    Args:
        folder: the folder.
        mark: a file or folder that is in it when it is whole.
        fill: writes the content into the empty folder it is given.

    Raises:
        InputError: the folder holds something else, or cannot be written.
    """
    if (folder / mark).exists():
        return
    with _writing(folder), FileLock(_made(folder.parent) / f".{folder.name}.lock"):
        if (folder / mark).exists():
            return
        if folder.exists() and any(folder.iterdir()):
            raise InputError(f"{folder}: would be filled with a benchmark but is not empty; choose another root")
        log(f"preparing {folder}")
        with replacing_folder(folder) as new:
            fill(new)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"{folder}: cannot be written ({reason}); choose another root, or another folder by VICINAL_DATA"
        ) from error
