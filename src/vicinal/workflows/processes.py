"""The processes that divide a command among them: those of one machine, or those that torchrun or SLURM started."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from vicinal.utils.errors import InputError
from vicinal.utils.launch import Launch, check_launch

MAX_DIFFERENCE = timedelta(days=7)  # after which the first process no longer waits for the last; the dead are noticed


@contextmanager
def dividing_processes(devices: int | None) -> Iterator[bool]:
    """In this context, processes exchange tensors by `torch.distributed`; all of them end when one dies.

    Without a launcher, this process starts the others, which run the same command.

    Args:
        devices: the number of processes on each machine; None: as many as torchrun or SLURM started, else one.

    Yields:
        Whether there are several processes.

    Raises:
        InputError: a launcher started others, or there are more than the cores of this machine.
    """
    if devices in (None, 1) and Launch.of().launcher is None:
        yield False
        return
    launch = check_launch(devices, None)
    on_each = launch.processes_per_node if launch.launcher is not None else devices
    if on_each is not None and on_each > (os.cpu_count() or 1):
        raise InputError(f"--devices {on_each}: this machine has {os.cpu_count()} cores; divide by at most as many")
    from lightning.fabric import Fabric
    from lightning.fabric.strategies.ddp import DDPStrategy

    from vicinal.training.engine import cluster_environment, launching
    from vicinal.training.processes.lifeline import Lifeline

    fabric = Fabric(
        accelerator="cpu",
        devices=on_each or 1,
        num_nodes=launch.num_nodes,
        strategy=DDPStrategy(timeout=MAX_DIFFERENCE),
        plugins=[cluster_environment(launch)],
    )
    with launching(fabric, (on_each or 1) if launch.launcher is None else 1):
        lifeline = Lifeline(os.environ.get("MASTER_ADDR") if launch.num_nodes > 1 else None)
    with lifeline:
        yield True
