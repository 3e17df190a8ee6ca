"""Threads that read files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def thread_pool() -> Iterator[ThreadPoolExecutor]:
    """A pool of one thread per core. After an error in the block, such as Ctrl-C, what was not begun is left undone.

    Example:
        >>> with thread_pool() as pool:
        ...     list(pool.map(abs, [-1, 2]))
        [1, 2]
    """
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
