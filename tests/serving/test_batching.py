"""Micro-batches: their sizes, waiting, a full queue, clients that do not wait any more, and items that fail."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.serving.service import random_vectors, save_index
from vicinal import Index
from vicinal.serving import matches
from vicinal.serving.batching import Batcher, one_by_one_if_broken
from vicinal.serving.bodies import SearchBody
from vicinal.serving.matches import search_batch
from vicinal.serving.problems import Problem
from vicinal.utils.errors import InputError

pytestmark = pytest.mark.anyio


class Work:
    """Notes the batches, and works on them when it may."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.may_go = threading.Event()
        self.may_go.set()

    def __call__(self, items: Sequence[Any]) -> list[Any]:
        self.batches.append(list(items))
        assert self.may_go.wait(60)
        return [-item for item in items]


async def start_one(batcher: Batcher[Any, Any], work: Work, item: Any) -> asyncio.Task[Any]:
    """Have an item worked on until `may_go`."""
    work.may_go.clear()
    task = asyncio.create_task(batcher.submit(item))
    while not work.batches:
        await asyncio.sleep(0.001)
    return task


async def test_those_that_wait_are_one_batch() -> None:
    work = Work()
    async with Batcher(work, max_batch=4) as batcher:
        first = await start_one(batcher, work, 0)
        others = [asyncio.create_task(batcher.submit(item)) for item in range(1, 7)]
        await asyncio.sleep(0)
        assert len(batcher) == 6
        work.may_go.set()
        assert await asyncio.gather(first, *others) == [0, -1, -2, -3, -4, -5, -6]
    assert work.batches == [[0], [1, 2, 3, 4], [5, 6]]


async def test_the_first_waits_for_others_but_not_long() -> None:
    async def later(item: int) -> int:
        await asyncio.sleep(0.02 * item)
        return await batcher.submit(item)

    work = Work()
    async with Batcher(work, max_batch=3, max_wait=600.0) as batcher:
        await asyncio.wait_for(asyncio.gather(*map(later, range(3))), 60)
    assert work.batches == [[0, 1, 2]]  # which is full
    async with Batcher(Work(), max_batch=3, max_wait=0.01) as alone:
        assert await asyncio.wait_for(alone.submit(1), 60) == -1


async def test_a_full_queue_refuses_and_who_hangs_up_is_left_out() -> None:
    work = Work()
    async with Batcher(work, max_batch=8, max_queue=2) as batcher:
        first = await start_one(batcher, work, 0)
        one, two = (asyncio.create_task(batcher.submit(item)) for item in (1, 2))
        await asyncio.sleep(0)
        with pytest.raises(Problem) as problem:
            await batcher.submit(3)
        assert (problem.value.status, problem.value.headers["Retry-After"]) == (429, "1")
        one.cancel()
        await asyncio.sleep(0)
        work.may_go.set()
        assert await asyncio.gather(first, two) == [0, -2]
    assert work.batches == [[0], [2]]


async def test_a_broken_item_does_not_spoil_its_batch() -> None:
    def run(items: Sequence[int]) -> list[float]:
        return [1 / item for item in items]

    results = one_by_one_if_broken(run)([1, 0, 2])
    assert results[::2] == [1, 0.5]
    assert isinstance(results[1], ZeroDivisionError)
    async with Batcher(run, max_batch=2) as batcher:
        with pytest.raises(ZeroDivisionError):
            await batcher.submit(0)
        assert await batcher.submit(4) == 0.25


def test_queries_with_the_same_options_are_one_search(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = Index.load(save_index(tmp_path))
    sizes: list[int] = []
    real = matches.search_images
    monkeypatch.setattr(matches, "search_images", lambda *args, **kw: sizes.append(len(args[1])) or real(*args, **kw))
    vectors = random_vectors(6, seed=3)
    bodies = [{"k": 3}, {"k": 2, "filter": "price < 9"}] * 2 + [{"filter": "nope < 3"}] * 2
    options = [SearchBody(id=number, **each).options() for number, each in enumerate(bodies)]  # type: ignore[arg-type]
    answers = search_batch(snapshot, [(*each, None) for each in zip(vectors, options, strict=True)])
    assert sizes == [2, 2]
    assert [isinstance(each, InputError) for each in answers] == [False] * 4 + [True] * 2
    for vector, option, answer in list(zip(vectors, options, answers, strict=True))[:4]:
        (alone,) = search_batch(snapshot, [(vector, option, None)])
        assert isinstance(alone, dict)
        assert isinstance(answer, dict)
        assert [match["id"] for match in answer["matches"]] == [match["id"] for match in alone["matches"]]
        np.testing.assert_allclose(
            [match["score"] for match in answer["matches"]], [match["score"] for match in alone["matches"]], atol=1e-6
        )
