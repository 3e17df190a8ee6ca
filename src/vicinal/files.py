"""Write whole or not at all: a file or a folder is never seen half-written."""

from __future__ import annotations

import ctypes
import errno
import glob
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# A temporary file that has not been written to for so long belongs to no living process.
STALE_SECONDS = 60


def write_bytes(path: str | Path, data: bytes) -> None:
    """Replace the file `path` by `data` atomically; its folder is made if missing.

    A crash, a kill or a full disk leaves the former content (or its absence). Several processes may write one path: the
    last wins. What a killed one left (see :func:`leftovers`) is swept by the next write after a minute.

    Raises:
        OSError: the data cannot be written, naming `path`.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    _sweep(path)


def leftovers(path: str | Path) -> list[Path]:
    """The temporary files `.<name>.<8 hex digits>.tmp` beside `path` of writers that are at work or were killed."""
    path = Path(path)
    return sorted(path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}.tmp"))


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


def _sweep(path: Path) -> None:
    for left in leftovers(path):
        with suppress(OSError):  # another process was faster
            # Held against the file just written, for the clock of a file server may not be ours.
            if left.is_file() and left.stat().st_mtime < path.stat().st_mtime - STALE_SECONDS:
                left.unlink()


@contextmanager
def replacing_folder(path: str | Path) -> Iterator[Path]:
    """Give an empty folder to fill; when the block ends well it takes the place of `path`, else it vanishes.

    Of a link, the folder that it points to is replaced. Where the system can swap two names in one step (Linux, on most
    file systems), `path` is there at every moment; elsewhere it is moved aside first, and back if the new folder cannot
    take its place.

    Raises:
        OSError: `path` is a file, or cannot be written.
    """
    path = Path(path).resolve()
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    new = _temporary(path)
    new.mkdir()
    is_current = path.exists() and path.samefile(".")
    try:
        yield new
        _put(new, path)
        if is_current:  # else the process would go on in a deleted folder
            os.chdir(path)
    finally:
        shutil.rmtree(new, ignore_errors=True)  # half a folder, or by now the former one


def _put(new: Path, path: Path) -> None:
    """Let the folder `new` take the place of `path`, and the former one, if there is any, that of `new`."""
    if not path.exists():
        os.rename(new, path)
    elif not _exchange(new, path):
        old = new.with_suffix(".old")
        try:
            os.rename(path, old)
            os.rename(new, path)
        except BaseException:
            if not path.exists():
                os.rename(old, path)
            raise
        os.rename(old, new)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two names in one step; False where system or file system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename is not None and rename(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0
