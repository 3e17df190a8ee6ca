"""Micro-batches: requests that arrive at about the same time are processed together, in a separate thread."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Generic, TypeVar

from vicinal.serving.problems import too_busy
from vicinal.utils.errors import EngineUnavailableError

Item = TypeVar("Item")
Result = TypeVar("Result")


class Batcher(Generic[Item, Result]):
    """Collects items, and processes all waiting items as one batch; `observe` is called with its size.

    While a batch is processed, the next ones gather. When none is processed, the first item waits for others at most
    `max_wait` seconds. Items whose client does not wait any more are left out.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Item]], Sequence[Result | Exception]],
        max_batch: int,
        max_wait: float = 0.0,
        max_queue: int = 256,
        name: str = "batches",
        observe: Callable[[int], Any] | None = None,
    ) -> None:
        self._run, self._observe = run, observe
        self.max_batch, self.max_wait, self.max_queue = max_batch, max_wait, max_queue
        self._waiting: deque[tuple[Item, asyncio.Future[Result], float]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    async def __aenter__(self) -> Batcher[Item, Result]:
        self._has_items, self._is_full = asyncio.Event(), asyncio.Event()
        self._task = asyncio.create_task(self._work())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for waiting in self._waiting:
            waiting[1].cancel()
        self._thread.shutdown()

    async def submit(self, item: Item) -> Result:
        """Return the result of an item; raises a Problem if too many wait."""
        if len(self._waiting) >= self.max_queue:
            raise too_busy("too many requests are waiting")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._waiting.append((item, future, loop.time()))
        self._has_items.set()
        if len(self._waiting) >= self.max_batch:
            self._is_full.set()
        return await future

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._has_items.wait()
            left = self._waiting[0][2] + self.max_wait - loop.time()
            if left > 0 and len(self._waiting) < self.max_batch:
                self._is_full.clear()
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._is_full.wait(), left)
            batch = self._next_batch()
            if batch:
                await self._finish(batch)

    def _next_batch(self) -> list[tuple[Item, asyncio.Future[Result]]]:
        batch: list[tuple[Item, asyncio.Future[Result]]] = []
        while self._waiting and len(batch) < self.max_batch:
            item, future, _ = self._waiting.popleft()
            if not future.done():
                batch.append((item, future))
        if not self._waiting:
            self._has_items.clear()
        return batch

    async def _finish(self, batch: Sequence[tuple[Item, asyncio.Future[Result]]]) -> None:
        if self._observe is not None:
            self._observe(len(batch))
        results: Sequence[Result | Exception]
        try:
            run = asyncio.get_running_loop().run_in_executor(self._thread, self._run, [item for item, _ in batch])
            results = await run
            if len(results) != len(batch):
                raise RuntimeError(f"{len(results)} results of a batch of {len(batch)}")
        except Exception as error:
            results = [error] * len(batch)
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)


def one_by_one_if_broken(run: Callable[[Sequence[Any]], Sequence[Any]]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Work on the items of a batch one by one if the batch fails, so that one invalid item does not fail the others."""

    def attempt(items: Sequence[Any]) -> Sequence[Any]:
        try:
            return run(items)
        except EngineUnavailableError as error:
            return [error] * len(items)
        except Exception as error:
            return [error] if len(items) == 1 else [result for item in items for result in attempt([item])]

    return attempt
