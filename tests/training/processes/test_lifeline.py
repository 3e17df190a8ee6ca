"""When one process of a run dies, all end within seconds; when one has finished, the others go on."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.processes import PRELOADED
from vicinal.training.processes import lifeline
from vicinal.training.processes.lifeline import Lifeline
from vicinal.utils.errors import InputError

WORLD, SECONDS = 3, 20  # which a busy machine may take; it is far less without other work


def member(rank: int, folder: Path, ending: int, how: str) -> None:
    """A process of a run that trains for ever, but for one that ends."""
    lifeline.END_SECONDS = 0.0
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=WORLD)
    life = Lifeline(hint="resume it")
    (folder / f"{rank} ready").touch()
    wait_for_all(folder)
    error = InputError("no such file") if how in ("error", "both") else None
    if rank == ending and how != "kill":
        leave(life, error)
    if rank == 2 and how == "both":
        leave(life, error)
    if how == "finish":
        time.sleep(2 * lifeline.GRACE_SECONDS)
        life.finish()
        os._exit(0)
    time.sleep(600)


def wait_for_all(folder: Path) -> None:
    while len(list(folder.glob("* ready"))) < WORLD:
        time.sleep(0.05)


def leave(life: Lifeline, error: Exception | None) -> None:
    """End this process as the command does after an error of its own, or with 0."""
    try:
        life.__exit__(None if error is None else type(error), error, None)
    except SystemExit as left:  # to the process of rank 0
        os._exit(int(str(left.code)))
    os._exit(0 if error is None else 9)


@pytest.mark.parametrize(
    ("ending", "how"),
    [
        (0, "kill"),
        (2, "error"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in [(2, "kill"), (0, "error"), (0, "finish"), (0, "both")]
        ),
    ],
)
def test_all_end_with_one(ending: int, how: str, tmp_path: Path) -> None:
    multiprocessing.set_forkserver_preload(PRELOADED)
    context = multiprocessing.get_context("forkserver")
    processes = [context.Process(target=member, args=(rank, tmp_path, ending, how)) for rank in range(WORLD)]
    for process in processes:
        process.start()
    try:
        wait_for_all(tmp_path)
        if how == "kill":
            os.kill(processes[ending].pid or 0, signal.SIGKILL)
        deadline = time.monotonic() + SECONDS
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        codes = [process.exitcode for process in processes]
    finally:
        for process in processes:
            process.kill()
    expected = WORLD * [0 if how == "finish" else 1]
    expected[ending] = {"kill": -signal.SIGKILL, "error": 9 if ending == 0 else 2, "both": 9, "finish": 0}[how]
    if how == "both":
        expected[2] = 2
    elif how == "error" and ending:
        expected[0] = 2  # with the error of the other one
    assert codes == expected
