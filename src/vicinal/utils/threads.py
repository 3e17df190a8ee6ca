"""Threads that read files, or run compiled loops."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def thread_pool() -> Iterator[ThreadPoolExecutor]:
    """A pool of one thread per core. After an error in the block, such as Ctrl-C, no further call begins.

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


def run_parts(function: Callable[[int, int], None], bounds: Sequence[int], num_threads: int) -> None:
    """Call a function that releases the interpreter lock for the parts of a range, in several threads.

    Args:
        function: takes the begin and the end, exclusive, of a part.
        bounds: where each part begins, and the end of the last one.
        num_threads: number of threads.

    Example:
        >>> sums = {}
        >>> run_parts(lambda begin, end: sums.update({begin: sum(range(begin, end))}), [0, 2, 5], num_threads=2)
        >>> sorted(sums.items())
        [(0, 1), (2, 9)]
    """
    with ThreadPoolExecutor(num_threads) as pool:
        parts = [pool.submit(function, *part) for part in pairwise(bounds)]
    for part in parts:
        part.result()  # raises the exception of the thread, if any


def map_in_order(
    function: Callable[[Item], Result], items: Iterable[Item], num_threads: int, start: Callable[[], None] | None = None
) -> Iterator[Result]:
    """Apply a function to items in several threads, and yield the results in the order of the items.

    At most two items per thread are computed ahead. After an error, or when the iterator is closed, no other item is
    begun.

    Args:
        function: takes an item.
        items: its arguments, one per call.
        num_threads: number of threads.
        start: called once by each thread.

    Example:
        >>> list(map_in_order(abs, [-1, 2, -3], num_threads=2))
        [1, 2, 3]
    """
    pool = ThreadPoolExecutor(num_threads, initializer=start)
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > 2 * num_threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
