"""Collective operations on a process group that refuses tensors of the CPU, as NCCL does."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tests.conftest import free_port
from tests.pretend_device import NAME, on_device, pretend_device
from vicinal.utils import distributed

pytestmark = pytest.mark.slow  # the device is compiled first


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("processes")
    mp.spawn(_process, (free_port(), folder), nprocs=2)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def test_tensors_of_the_cpu_are_added_gathered_and_compared(results: list[dict[str, Any]]) -> None:
    for result in results:
        assert "device type cpu" in result["refusal"]  # of the group itself
        assert result["sum"].tolist() == [1.0, 3.0]
        assert result["logsumexp"].item() == pytest.approx(torch.tensor([0.0, 1.0]).logsumexp(0).item())
        assert result["gathered"].tolist() == [[0.0, 1.0], [1.0, 2.0]]
        assert result["flags"] == [False, True]
        assert result["object"] == {"rank": 0}


def test_tensors_of_the_device_stay_on_it(results: list[dict[str, Any]]) -> None:
    for rank, result in enumerate(results):
        assert result["on_device"].tolist() == [1.0, 3.0]
        assert result["gradient"].tolist() == [2.0 * (rank + 1)] * 2
        assert result["copies"] == 0


def _process(rank: int, port: int, folder: Path) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.Backend.register_backend("device_only", dist.ProcessGroupGloo, devices=[NAME])
    dist.init_process_group("device_only", rank=rank, world_size=2)
    with pretend_device() as device:
        device.cpu_group = dist.new_group(backend="gloo")
        own, result = torch.arange(2.0) + rank, {}
        try:
            dist.all_reduce(own.clone())
        except RuntimeError as error:
            result["refusal"] = str(error)
        result |= {
            "sum": distributed.all_reduce_sum(own),
            "logsumexp": distributed.all_reduce_logsumexp(own[:1]),
            "gathered": distributed.all_gather(own[None]),
            "flags": [*(distributed.all_equal(torch.tensor([each])) for each in (rank, 5))],
            "object": distributed.broadcast_object({"rank": rank}),
        }
        leaf = on_device(own[None]).requires_grad_()
        weights = on_device(torch.tensor([[1.0], [2.0]]))
        before = device.waits.total()
        gathered = distributed.all_gather(leaf)
        (gathered * weights).sum().backward()
        total = distributed.all_reduce_sum(leaf.detach()[0])
        result["copies"] = device.waits.total() - before - 1  # that all batches have one size
        result["gradient"], result["on_device"] = leaf.grad[0].cpu(), total.cpu()
        distributed.barrier()
        torch.save(result, folder / f"{rank}.pt")
    dist.destroy_process_group()
