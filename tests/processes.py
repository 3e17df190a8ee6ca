"""Process groups of gloo on this machine, for tests of several processes together."""

import multiprocessing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes
from torch.utils._python_dispatch import TorchDispatchMode

PRELOADED = ["torch.distributed", "torch.nn.parallel", "vicinal.training.trainer"]
OUTPUT_FIRST = ("allgather", "reduce_scatter", "alltoall")  # operations that name the output first
Results = dict[int, list[dict[str, Any]]]


def run_groups(function: Callable[[int, int], dict[str, Any]], worlds: Sequence[int], folder: Path) -> Results:
    """The results of a function of rank and world size on each process of groups of several sizes.

    The groups exist one after the other, in the same processes: starting these takes longer than most tests.
    """
    multiprocessing.set_forkserver_preload(PRELOADED)  # one process imports them for all
    arguments = (function, tuple(worlds), folder)
    start_processes(_process, arguments, nprocs=max(worlds), start_method="forkserver")  # type: ignore[no-untyped-call]
    return {
        world: [torch.load(folder / f"{world} {rank}.pt", weights_only=False) for rank in range(world)]
        for world in worlds
    }


def _process(rank: int, function: Callable[[int, int], dict[str, Any]], worlds: Sequence[int], folder: Path) -> None:
    torch.set_num_threads(1)
    for world in worlds:
        if rank < world:
            dist.init_process_group("gloo", init_method=f"file://{folder}/{world}", rank=rank, world_size=world)
            torch.save(function(rank, world), folder / f"{world} {rank}.pt")
            dist.barrier()
            dist.destroy_process_group()


class CollectiveCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Collects the collective operations of this process in a block, those of `DistributedDataParallel` too.

    Attributes:
        messages: for each operation in turn its name, such as allreduce, and the bytes that this process gave it.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.messages: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            name = func._schema.name.removeprefix("c10d::").strip("_").removesuffix("_base")
            given = args[1] if name in OUTPUT_FIRST else args[0]
            tensors = [given] if isinstance(given, torch.Tensor) else given
            self.messages.append((name, sum(each.numel() * each.element_size() for each in tensors)))
        return func(*args, **(kwargs or {}))
