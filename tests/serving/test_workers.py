"""Processes that decode: one that runs out of memory, dies or hangs costs its request only."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.refusals import refused_call
from tests.serving.service import noise, picture
from vicinal.serving.decoding import ImageTask, PillowPreparation, PreparedImage, ThumbnailTask
from vicinal.serving.problems import Problem
from vicinal.serving.workers import DecodingPool

SECONDS = 2.0


@pytest.fixture(scope="module")
def pool() -> Iterator[DecodingPool]:
    pool = DecodingPool(PillowPreparation(), 2, max_pixels=50_000_000, max_memory=60 * 2**20, seconds=SECONDS)
    yield pool
    pool.close()


def works(pool: DecodingPool, count: int = 4) -> None:
    futures = [pool.submit(ImageTask(noise(number, (30, 20)))) for number in range(count)]
    assert [each.result(120).pixels.shape for each in futures] == [(20, 30, 3)] * count


def test_images_and_thumbnails(pool: DecodingPool, tmp_path: Path) -> None:
    works(pool)
    prepared: PreparedImage = pool.submit(ImageTask(picture("red", (40, 30), "JPEG"), (10, 5, 30, 20))).result(120)
    assert (prepared.pixels.shape, prepared.format) == ((15, 20, 3), "JPEG")
    (tmp_path / "x.png").write_bytes(picture("blue", (400, 200)))
    thumbnail = pool.submit(ThumbnailTask(str(tmp_path / "x.png"), None, 50)).result(120)
    assert thumbnail[:2] == b"\xff\xd8"
    refused_call("no such file", pool.submit(ThumbnailTask(str(tmp_path / "none.png"), None, 50)).result, 120)


def test_an_image_that_needs_too_much_memory_is_refused(pool: DecodingPool) -> None:
    large = picture(0, (6000, 6000), "PNG", "L")  # 108 MB and more in color
    assert len(large) < 100_000
    deaths = pool.num_deaths
    for _ in range(3):
        refused_call("needs more memory", pool.submit(ImageTask(large)).result, 120)
    works(pool)
    assert pool.num_deaths - deaths <= 3


def folders(pool: DecodingPool) -> list[str]:
    return [worker._folder for worker in pool._workers]


def processes(pool: DecodingPool) -> list[int]:
    return [worker._process.pid for worker in pool._workers if worker.is_alive()]


def stopped_pool(pool: DecodingPool) -> list[Future[Any]]:
    for process in processes(pool):
        os.kill(process, signal.SIGSTOP)
    futures = [pool.submit(ImageTask(noise(number))) for number in range(2)]
    time.sleep(0.1)
    return futures


def test_a_process_that_dies_costs_one_request(pool: DecodingPool) -> None:
    futures = stopped_pool(pool)
    first, second = processes(pool)
    os.kill(first, signal.SIGKILL)
    os.kill(second, signal.SIGCONT)
    results = [each.exception(120) for each in futures]
    assert sorted(type(each).__name__ for each in results) == ["InputError", "NoneType"]
    works(pool)
    killed = folders(pool)
    for process in processes(pool):  # while nothing is decoded
        os.kill(process, signal.SIGKILL)
    while processes(pool):
        time.sleep(0.01)
    works(pool)
    assert not any(map(os.path.exists, killed)), "a file of a client is left"


def test_a_process_that_hangs_is_ended(pool: DecodingPool) -> None:
    futures = stopped_pool(pool)
    os.kill(processes(pool)[0], signal.SIGCONT)
    stopped = folders(pool)
    errors = [error for each in futures if (error := each.exception(120)) is not None]
    assert [type(error) for error in errors] == [Problem]
    assert errors[0].status == 504
    assert list(map(os.path.exists, stopped)).count(True) == 1, "the image of the process that hung is left"
    works(pool)
