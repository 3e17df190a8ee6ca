"""The processes that divide a command among them, which torchrun or SLURM started."""

from __future__ import annotations

from datetime import timedelta

from vicinal.utils.launch import check_launch

MAX_DIFFERENCE = timedelta(days=7)  # after which the first process no longer waits for the last; the dead are noticed


def join_processes(devices: int | None) -> None:
    """Let the processes that torchrun or SLURM started exchange tensors by `torch.distributed`.

    Args:
        devices: the number of processes on each machine; None: as many as were started.

    Raises:
        InputError: a launcher started others.
    """
    launch = check_launch(devices, None)
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy

    from vicinal.training import engine

    fabric = Fabric(
        accelerator="cpu",
        devices=launch.processes_per_node,
        num_nodes=launch.num_nodes,
        strategy=DDPStrategy(timeout=MAX_DIFFERENCE),
        plugins=[engine.cluster_environment(launch)],
    )
    engine.join_processes(fabric)
