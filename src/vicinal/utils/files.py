"""Files of users: checks before reading, and atomic writes.

Other processes see a file or folder as it was or as it is when complete, never in between.
"""

from __future__ import annotations

import ctypes
import errno
import glob
import hashlib
import json
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from vicinal.utils.console import log
from vicinal.utils.errors import InputError, unreadable

# A temporary file that has not been written to for this long belongs to a process that was killed.
STALE_SECONDS = 60
DIGEST_BLOCK = 2**20
DIGESTS = "digests.json"


def check_regular_file(path: str | Path) -> None:
    """Raise InputError unless a path is a regular file: opening a pipe, or reading a device, may never end."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise unreadable(path, error) from None
    except ValueError:  # a null character
        raise InputError(f"{str(path)!r}: no such file") from None
    if stat.S_ISDIR(mode):
        raise InputError(f"{path}: is a folder; give a file")
    if not stat.S_ISREG(mode):
        raise InputError(f"{path}: is a pipe, socket or device; give a file")


def file_digest(path: str | Path) -> str:
    """The SHA-256 of the content of a file, in hexadecimal digits; hashlib.file_digest needs Python 3.11."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(DIGEST_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def write_digests(folder: Path, recursive: bool = False) -> None:
    """Write the SHA-256 of each file of a folder, and of those in folders below, into the file `DIGESTS` there."""
    files = sorted(file for file in (folder.rglob("*") if recursive else folder.iterdir()) if file.is_file())
    digests = {file.relative_to(folder).as_posix(): file_digest(file) for file in files}
    (folder / DIGESTS).write_text(json.dumps(digests), encoding="utf-8")


def changed_file(folder: Path) -> Path | None:
    """The first file that has changed since :func:`write_digests` wrote its digest; None if none has."""
    try:
        digests = dict(json.loads((folder / DIGESTS).read_bytes()))
        for name, digest in digests.items():
            file = folder / name
            if ".." in file.parts or not file.is_relative_to(folder):
                return folder / DIGESTS
            if not file.is_file() or file_digest(file) != digest:
                return file
    except (OSError, ValueError, TypeError, RecursionError):
        return folder / DIGESTS
    return None


def write_bytes(path: str | Path, data: bytes | memoryview) -> None:
    """Write `data` to the file `path` atomically, as :func:`write_blocks` does."""
    write_blocks(path, [data])


def write_blocks(path: str | Path, blocks: Iterable[bytes | memoryview]) -> None:
    """Write blocks of bytes to the file `path` atomically; its folder is created if it does not exist.

    After a crash, a kill or on a full disk the file is unchanged. If several processes write to one path, the last
    one wins. Temporary files of killed processes (see :func:`temporary_files`) are deleted by the next write if they
    are older than a minute. The `filename` of an OSError is `path`.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replace_file(path) as temporary, temporary.open("xb") as file:
            for block in blocks:
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    _delete_stale(path)


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield the name of a file to write; it replaces `path` if the block succeeds, and is deleted if it fails."""
    temporary = _temporary(path)
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def read_bytes(path: str | Path) -> bytes:
    """The content of a file; an InputError if it is not a file of data or cannot be read."""
    check_regular_file(path)
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise unreadable(path, error) from None


def folder_time(folder: Path) -> float:
    """The time that a file written now would get; the clock of a file server may differ from the local one."""
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_mtime


def temporary_files(path: str | Path) -> list[Path]:
    """The files `.<name>.<8 hex digits>.tmp` beside `path`, of processes that are writing it or were killed."""
    path = Path(path)
    return sorted(path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}.tmp"))


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")


def _delete_stale(path: Path) -> None:
    for temporary in temporary_files(path):
        with suppress(OSError):  # another process deleted it first
            # Compared with the file just written, since the clock of a file server may differ from the local one.
            if temporary.is_file() and temporary.stat().st_mtime < path.stat().st_mtime - STALE_SECONDS:
                temporary.unlink()


@contextmanager
def replace_folder(path: str | Path) -> Iterator[Path]:
    """Yield an empty folder to fill. It replaces `path` if the block succeeds, and is deleted if the block fails.

    If `path` is a symbolic link, the folder that it points to is replaced. Where the system can exchange two names in
    one step (Linux, on most file systems), `path` exists at every moment; elsewhere it is moved aside first, and moved
    back if the new folder cannot replace it.
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
        _move(new, path)
        if is_current:  # the old working folder is about to be deleted
            os.chdir(path)
    finally:
        shutil.rmtree(new, ignore_errors=True)  # an incomplete folder, or by now the replaced one


def _move(new: Path, path: Path) -> None:
    """Rename the folder `new` to `path`, and the folder that was there, if any, to `new`."""
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
    """Exchange two names in one step; False if the system or the file system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename is not None and rename(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0


@contextmanager
def hold_lock(path: str | Path, timeout: float, purpose: str) -> Iterator[None]:
    """Hold a lock file for a block; one process and one thread hold it at a time.

    The system releases the lock when the process ends, however it ends. The file stays, as deleting it would let two
    processes hold locks on two files of the same name. If it is still held after `timeout` seconds, an InputError says
    that another process does what `purpose` says, such as "write the index gallery".
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        held = lock.acquire(timeout=0)
    except Timeout:
        if not timeout:
            raise InputError(f"cannot {purpose}: another process is doing so") from None
        log(f"waiting up to {timeout:g} s to {purpose}: another process is doing so")
        try:
            held = lock.acquire(timeout=timeout)
        except Timeout:
            raise InputError(
                f"cannot {purpose}: another process has been doing so for {timeout:g} s; try again later, or wait "
                "longer with a larger timeout"
            ) from None
    with held:
        yield


def cache_folder(root: str | Path | None = None) -> Path:
    """The folder of benchmarks and exported models: `root`, else the variable VICINAL_DATA, else ~/.cache/vicinal."""
    return Path(root or os.environ.get("VICINAL_DATA") or Path.home() / ".cache" / "vicinal")
