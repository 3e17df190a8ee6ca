"""Two processes give the loss and the gradients of one."""

from __future__ import annotations

import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from vicinal import distributed
from vicinal.losses import MultiSimilarityLoss
from vicinal.similarity import Source

# Classes are spread unequally over the two processes, and one is split between them.
LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 1, 3, 3, 0])


def batch() -> tuple[torch.nn.Linear, torch.Tensor]:
    torch.manual_seed(0)
    return torch.nn.Linear(6, 4).double(), torch.randn(12, 6, dtype=torch.float64)


def test_one_process_needs_no_communication() -> None:
    x = torch.randn(3, 2)
    assert distributed.gather(x) is x
    assert distributed.mean(x) is x
    assert (distributed.world_size(), distributed.rank(), distributed.agree(True)) == (1, 0, True)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@pytest.mark.parametrize("loss", [MultiSimilarityLoss(), MultiSimilarityLoss(tile_rows=2, reduction="contributing")])
def test_two_processes_equal_one(loss: MultiSimilarityLoss, tmp_path) -> None:
    model, x = batch()
    value = loss(model(x), LABELS)
    value.backward()
    mp.spawn(_process, (free_port(), str(tmp_path), loss), nprocs=2)
    for rank in range(2):
        got = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        torch.testing.assert_close(got["loss"], value.detach(), rtol=1e-12, atol=0)
        torch.testing.assert_close(got["weight"], model.weight.grad, rtol=1e-10, atol=1e-13)
        torch.testing.assert_close(got["bias"], model.bias.grad, rtol=1e-10, atol=1e-13)
        assert got["agree"] == [True, False]
        assert got["first"] == {"rank": 0}
        assert "[6, 5]" in got["unequal"]


def _process(rank: int, port: int, folder: str, loss: MultiSimilarityLoss) -> None:
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    model, x = batch()
    model = torch.nn.parallel.DistributedDataParallel(model)
    mine = slice(rank * 6, rank * 6 + 6)
    value = sum(loss.parts_of(Source.over_processes(model(x[mine]), LABELS[mine])).values())
    value.backward()
    try:
        distributed.gather(torch.zeros(6 - rank))
        unequal = ""
    except ValueError as error:
        unequal = str(error)
    weights = model.module
    result = {
        "loss": distributed.mean(value.detach()),
        "weight": weights.weight.grad,
        "bias": weights.bias.grad,
        "first": distributed.from_first({"rank": rank}),
        "agree": [distributed.agree(rank == 1), distributed.agree(False)],
        "unequal": unequal,
    }
    torch.save(result, f"{folder}/{rank}.pt")
    dist.destroy_process_group()
