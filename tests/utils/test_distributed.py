"""Two processes give the loss and the gradients of one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.processes import run_groups
from vicinal import losses
from vicinal.memory import CrossBatchMemory
from vicinal.mining import DistanceWeightedMiner
from vicinal.similarity import PairSource
from vicinal.utils import distributed

# Classes are spread unequally over the two processes, and some are split between them; anchors without a positive are
# all in the second part at first, so that the counts of the two processes differ.
LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 1, 3, 4, 0])
HALF = len(LABELS) // 2
STEPS = 3

# One loss of each way to divide by counts, and memories; tests/losses/test_processes.py has every loss.
LOSSES: dict[str, Callable[[], losses.Loss]] = {
    "anchors": losses.MultiSimilarityLoss,
    "contributing": lambda: losses.MultiSimilarityLoss(reduction="contributing", tile_rows=2),
    "contributing, positives": lambda: losses.SupConLoss(reduction="contributing"),
    "sum": losses.BinomialDevianceLoss,
    "pairs": losses.NTXentLoss,
    "pairs of two kinds": lambda: losses.ContrastiveLoss(reduction="pairs"),
    "violating": losses.ContrastiveLoss,
    "nothing violates": lambda: losses.ContrastiveLoss(positive_margin=-1.0, negative_margin=1.0),
    "contrastive, sum": lambda: losses.ContrastiveLoss(positive_margin=None, reduction="sum"),
    "triplets, a single one violates": lambda: losses.TripletLoss(margin=-1.3, reduction="violating"),  # in one process
    "triplets, drawn": lambda: losses.TripletLoss(miner=DistanceWeightedMiner(num_samples=2)),
    "margin, beta per class, pairs": lambda: losses.MarginLoss(num_classes=5, nu=0.1, miner=None, reduction="pairs"),
    "sum of losses": lambda: (
        0.5 * losses.ContrastiveLoss() + 2 * losses.MarginLoss() + 0.1 * losses.HistogramLoss(bins=10)
    ),
    "memory that wraps": lambda: CrossBatchMemory(losses.ContrastiveLoss(), 17, warmup=1),
    "memory smaller than a batch": lambda: CrossBatchMemory(losses.NTXentLoss(reduction="sum"), 5),
    "memory, drawn": lambda: (
        CrossBatchMemory(losses.MarginLoss(), 20) + CrossBatchMemory(losses.HistogramLoss(bins=10), 20)
    ),
}


class System(nn.Module):
    def __init__(self, loss: losses.Loss) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Linear(6, 4)
        self.loss = loss
        self.double()

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return sum(self.loss.parts(PairSource.from_distributed_batch(self.model(x), labels)).values())


def losses_gradients_and_weights(system: System, model: nn.Module, mine: slice) -> dict[str, list[Tensor]]:
    optimizer = torch.optim.SGD(system.parameters(), lr=0.1)
    seen: dict[str, list[Tensor]] = {"loss": [], "gradient": [], "weights": []}
    for step in range(STEPS):
        x = torch.randn(len(LABELS), 6, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        value = model(x[mine], LABELS.roll(step)[mine])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        seen["loss"].append(distributed.all_reduce_mean(value.detach()))
        seen["gradient"] += [parameter.grad.clone() for parameter in system.parameters()]
        seen["weights"] += [parameter.detach().clone() for parameter in system.parameters()]
    seen["memory"] = [m.embeddings for m in system.modules() if isinstance(m, CrossBatchMemory)]
    return seen


def test_one_process_needs_no_communication() -> None:
    x = torch.randn(3, 2)
    assert distributed.all_gather(x) is x
    assert distributed.all_reduce_mean(x) is x
    assert (distributed.world_size(), distributed.rank()) == (1, 0)


@pytest.fixture(scope="module")
def of_two_processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes saw of every loss; starting them takes longer than all they do."""
    return run_groups(_process, (2,), tmp_path_factory.mktemp("processes"))[2]


@pytest.mark.parametrize("name", LOSSES)
def test_two_processes_equal_one(name: str, of_two_processes: list[dict[str, Any]]) -> None:
    system = System(LOSSES[name]())
    expected = losses_gradients_and_weights(system, system, slice(None))
    for result in of_two_processes:
        for what, tensors in expected.items():
            for got, wanted in zip(result[name][what], tensors, strict=True):
                torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-12, msg=lambda m, what=what: f"{what}: {m}")


def test_processes_agree(of_two_processes: list[dict[str, Any]]) -> None:
    for result in of_two_processes:
        assert result["first"] == {"rank": 0}
        assert "[6, 5]" in result["unequal"]


def _process(rank: int, _: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, loss in LOSSES.items():
        system = System(loss())
        mine = slice(rank * HALF, rank * HALF + HALF)
        result[name] = losses_gradients_and_weights(system, DistributedDataParallel(system), mine)
    try:
        distributed.all_gather(torch.zeros(6 - rank))
        unequal = ""
    except ValueError as error:
        unequal = str(error)
    return result | {"first": distributed.broadcast_object({"rank": rank}), "unequal": unequal}
