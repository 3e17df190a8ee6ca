"""Threads that read files, or run compiled loops."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise


@contextmanager
def thread_pool() -> Iterator[ThreadPoolExecutor]:
    """A pool of one thread per core. After an error in the block, such as Ctrl-C, no further call begins."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def run_parts(function: Callable[[int, int], None], bounds: Sequence[int], num_threads: int) -> None:
    """Call a function that releases the interpreter lock for the parts of a range, in several threads.

    The function takes the begin and the end (exclusive) of a part. `bounds` has the begin of each part and the end of
    the last.
    """
    with ThreadPoolExecutor(num_threads) as pool:
        parts = [pool.submit(function, *part) for part in pairwise(bounds)]
    for part in parts:
        part.result()  # raises the exception of the thread, if any
