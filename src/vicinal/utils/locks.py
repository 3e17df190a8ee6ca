"""A file that one process holds at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vicinal.utils.console import log
from vicinal.utils.errors import InputError


@contextmanager
def hold_lock(path: str | Path, timeout: float, purpose: str) -> Iterator[None]:
    """Hold a lock file for a block; one process and one thread hold it at a time.

    The system releases the lock when the process ends, however it ends. The file stays, as deleting it would let two
    processes hold locks on two files of the same name.

    Args:
        path: the lock file, in a folder that exists.
        timeout: seconds to wait while another process or thread holds the lock.
        purpose: what the holder does, for messages, such as "write the index gallery".

    Raises:
        InputError: it is still held after `timeout` seconds, or `timeout` is negative.
        OSError: the file cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, hold_lock(f"{folder}/.lock", 10, "write the index"):
        ...     sorted(each.name for each in Path(folder).iterdir())
        ['.lock']
    """
    from filelock import FileLock, Timeout

    if not timeout >= 0:
        raise InputError(f"timeout = {timeout} must be a number of seconds from 0 up")
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if not timeout:
            raise InputError(f"cannot {purpose}: another process is doing so") from None
        log(f"waiting up to {timeout:g} s to {purpose}: another process is doing so")
        try:
            lock.acquire(timeout=timeout)
        except Timeout:
            raise InputError(
                f"cannot {purpose}: another process has been doing so for {timeout:g} s; try again later, or wait "
                "longer with a larger timeout"
            ) from None
    try:
        yield
    finally:
        lock.release()
