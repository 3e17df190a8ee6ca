"""A pool of processes that decode images, and thumbnails; if a process dies, only its current request fails."""

from __future__ import annotations

import asyncio
import multiprocessing
import shutil
import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any

from vicinal.serving.decoding import Failure, ImageTask, Preparation, ThumbnailTask, work
from vicinal.serving.problems import Problem
from vicinal.utils.errors import InputError

MAX_THUMBNAILS = 512  # that are remembered
START_SECONDS = 120.0
STOP_SECONDS = 2.0


class Thumbnails:
    """Makes thumbnails, JPEG files."""

    def __init__(self, pool: DecodingPool) -> None:
        self._pool = pool
        self._known: OrderedDict[ThumbnailTask, bytes] = OrderedDict()

    async def get(self, task: ThumbnailTask) -> bytes:
        if task not in self._known:
            self._known[task] = await asyncio.wrap_future(self._pool.submit(task))
            while len(self._known) > MAX_THUMBNAILS:
                self._known.popitem(last=False)
        return self._known[task]


class DecodingPool:
    """Processes that decode images, each with little memory and a thread that waits for its answer."""

    def __init__(
        self, make: Preparation | None, num_workers: int, max_pixels: int, max_memory: int, seconds: float
    ) -> None:
        self._arguments = (make, max_pixels, max_memory)
        self._seconds, self.num_deaths = seconds, 0
        self._context = _context()
        self._local = threading.local()
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()  # of the list
        self._threads = ThreadPoolExecutor(num_workers, thread_name_prefix="decoding")
        if make is None:  # only thumbnails are made, and perhaps none
            return
        barrier = threading.Barrier(num_workers)
        starts = [self._threads.submit(self._start_with_others, barrier) for _ in range(num_workers)]
        try:
            for each in starts:
                each.result()
        except BaseException:
            self.close()
            raise

    def submit(self, task: ImageTask | ThumbnailTask) -> Future[Any]:
        """Perform a task; the result is a PreparedImage or the bytes of a thumbnail, an InputError, or a Problem."""
        return self._threads.submit(self._perform, task)

    def close(self) -> None:
        """End the processes; waiting tasks are cancelled."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        for worker in self._workers:
            worker.stop()

    def _start_with_others(self, barrier: threading.Barrier) -> None:
        barrier.wait()  # so that each thread starts one process
        self._start()

    def _start(self) -> _Worker:
        old: _Worker | None = getattr(self._local, "worker", None)
        if old is not None:
            old.stop()
        self._local.worker = worker = _Worker(self._context, self._arguments)
        with self._lock:
            self._workers = [*(each for each in self._workers if each is not old), worker]
        return worker

    def _perform(self, task: ImageTask | ThumbnailTask) -> Any:
        worker: _Worker | None = getattr(self._local, "worker", None)
        if worker is None or not worker.is_alive():
            worker = self._start()
        try:
            result = worker.perform(task, self._seconds)
        except TimeoutError:  # which is an OSError
            self.num_deaths += 1
            worker.stop()
            raise Problem(504, "the image takes too long to decode") from None
        except (EOFError, OSError):
            self.num_deaths += 1
            worker.stop()
            raise InputError("it cannot be decoded; the decoding process died") from None
        if isinstance(result, Failure):
            raise InputError(result.reason)
        return result


class _Worker:
    def __init__(self, context: Any, arguments: tuple[Any, ...]) -> None:
        self._connection: Connection
        self._folder = ""
        self._connection, other = context.Pipe()
        self._process = context.Process(target=work, args=(other, *arguments), name="decoding", daemon=True)
        self._process.start()
        other.close()
        try:
            if not self._connection.poll(START_SECONDS):
                raise EOFError
            self._folder = self._connection.recv()
        except (EOFError, OSError):
            self.stop()
            raise InputError("a decoding process cannot be started; increase --decode_memory_mb") from None

    def is_alive(self) -> bool:
        return bool(self._process.is_alive())

    def perform(self, task: Any, seconds: float) -> Any:
        self._connection.send(task)
        if not self._connection.poll(seconds):
            raise TimeoutError
        return self._connection.recv()

    def stop(self) -> None:
        self._connection.close()
        self._process.join(0.0)
        with suppress(OSError):
            self._process.kill()
        self._process.join(STOP_SECONDS)
        if self._folder:  # a process that is killed leaves it
            shutil.rmtree(self._folder, ignore_errors=True)


def start_early() -> None:
    """Start the process that imports the modules of the decoding processes, before they are needed."""
    _context()
    forkserver.ensure_running()


def _context() -> Any:
    """The start method of processes: forked from one with all imports."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["vicinal.serving.decoding", "vicinal.data.images.image_ops"])
    return context
