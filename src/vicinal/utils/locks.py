"""Locks: a file that one process holds at a time, and a lock for many reading threads or one that writes."""

from __future__ import annotations

import threading
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


class ReadWriteLock:
    """Any number of threads may read, or one may write. Reading threads that arrive while one waits to write wait too.

    A thread that reads or writes may read again within, without waiting. It must not write again within.

    Example:
        >>> lock = ReadWriteLock()
        >>> with lock.write(), lock.read():
        ...     print("written, and read again")
        written, and read again
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._num_readers = 0
        self._num_waiting = 0  # threads that wait to write
        self._is_writing = False
        self._thread = threading.local()

    def __reduce__(self) -> tuple[type[ReadWriteLock], tuple[()]]:
        return ReadWriteLock, ()  # a copied or pickled owner gets a lock of its own

    @contextmanager
    def read(self) -> Iterator[None]:
        """Wait until no thread writes or waits to write, and read in a block."""
        if self._depth:
            yield
            return
        with self._condition:
            self._condition.wait_for(lambda: not self._is_writing and not self._num_waiting)
            self._num_readers += 1
        self._depth = 1
        try:
            yield
        finally:
            self._depth = 0
            with self._condition:
                self._num_readers -= 1
                self._condition.notify_all()

    @contextmanager
    def write(self) -> Iterator[None]:
        """Wait until no other thread reads or writes, and write in a block."""
        if self._depth:
            raise RuntimeError("a thread cannot write while it reads or writes already")
        with self._condition:
            self._num_waiting += 1
            try:
                self._condition.wait_for(lambda: not self._is_writing and not self._num_readers)
                self._is_writing = True
            finally:
                self._num_waiting -= 1
                self._condition.notify_all()
        self._depth = 1
        try:
            yield
        finally:
            self._depth = 0
            with self._condition:
                self._is_writing = False
                self._condition.notify_all()

    @property
    def _depth(self) -> int:
        """1 in a thread that reads or writes, else 0."""
        return getattr(self._thread, "depth", 0)

    @_depth.setter
    def _depth(self, depth: int) -> None:
        self._thread.depth = depth
