"""Messages of one training step per loss, counted with 1, 2 and 4 processes, and computed for 64.

    python -m benchmarks.distributed [--batch 64] [--dim 512]

Each process has a batch of its own, a linear layer under `DistributedDataParallel` and the loss on the batches of all
processes. What is counted are the collective operations of a step, those of torch too, and the bytes that a process
sends where they go around in a ring, as NCCL and gloo do with large ones: of b bytes (p - 1) / p in a reduce-scatter or
an exchange, twice that in an all-reduce, and p - 1 times its own part in a gather.

The least possible is one gather of the embeddings with their labels, one reduce-scatter of the gradient with respect to
them, one all-reduce of the gradient of the weights, and one message of control. Nothing is timed: processes on one
machine say nothing about a network. The numbers for 64 processes are computed by formulas, which the counts of 2 and 4
must equal.
"""

from __future__ import annotations

import argparse
import functools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.processes import CollectiveCounter, run_groups
from vicinal.losses import (
    CenterContrastiveLoss,
    ContextualLoss,
    ContrastiveLoss,
    HistogramLoss,
    Loss,
    MultiSimilarityLoss,
    ProxyAnchorLoss,
    RecallAtKLoss,
    SmoothAPLoss,
)
from vicinal.losses.contextual import loss as contextual
from vicinal.memory import CrossBatchMemory
from vicinal.similarity.pair_source import PairSource
from vicinal.training.step_message import StepMessage
from vicinal.training.strategy import exclude_from_ddp, sharded_losses
from vicinal.utils import distributed

WORLDS, COMPUTED, FEATURES, CLASSES, CONTROL = (4, 2, 1), 64, 17, 64, 24
NEIGHBORS, SPARSE = 8, "ContextualLoss, sparse, 8 neighbors a sample"
Messages = list[tuple[str, float]]
"""The operations of a step: name, and bytes that a process gives."""


@dataclass(frozen=True)
class Setting:
    """The numbers that messages depend on: processes, images of each, and dimensions of embeddings."""

    world: int
    batch: int
    dim: int

    @property
    def embeddings(self) -> Messages:
        """The embeddings with their labels, and the gradient with respect to them."""
        gathered = self.batch * (4 * self.dim + 8)
        return [("allgather", gathered), ("reduce_scatter", 4 * self.world * self.batch * self.dim)]

    @property
    def least(self) -> Messages:
        """What a loss of all pairs of the batch cannot do without, beside the gradient of the weights."""
        return [*self.embeddings, ("allreduce", CONTROL)]

    def contextual(self) -> Messages:
        """The rows of dense matrices: neighborhoods as bytes, w1 and gradients as numbers; and of their transposes."""
        rows, n = self.batch, self.batch * self.world
        gathered = [("allgather", rows * n * size) for size in (1, 1, 1, 4, 4, 4)]
        exchanged = [("alltoall", rows * n * size) for size in (1, 1, 4, 4, 4, 4)]
        return [*self.embeddings, *gathered, *exchanged, *4 * [("allgather", 4 * rows)], ("allreduce", 4)]

    def sigmoid(self) -> Messages:
        """The rows of five matrices, and the gradients with respect to them."""
        rows, n = self.batch, self.batch * self.world
        return [*self.embeddings, *5 * [("allgather", 4 * rows * n)], *5 * [("reduce_scatter", 4 * n * n)]]

    def sparse(self) -> Messages:
        """The lists of neighbors: two numbers and a flag each."""
        return [*self.embeddings, ("allreduce", 8 * self.world), ("allgather", 12 * self.batch * NEIGHBORS)]

    def with_sums(self, *sizes: int) -> Messages:
        """The embeddings, and sums over the anchors of all processes."""
        return [*self.embeddings, *(("allreduce", size) for size in sizes)]

    @property
    def centers(self) -> int:
        """The bytes of the class centers, whose gradient goes with that of the weights."""
        return 4 * CLASSES * self.dim


LOSSES: dict[str, tuple[Callable[[int], Loss], Callable[[Setting], Messages]]] = {
    "MultiSimilarityLoss": (lambda _: MultiSimilarityLoss(), Setting.with_sums),
    "CrossBatchMemory of it, size 1,000": (lambda _: CrossBatchMemory(MultiSimilarityLoss(), 1000), Setting.with_sums),
    "SmoothAPLoss": (lambda _: SmoothAPLoss(), lambda each: each.with_sums(4)),
    "RecallAtKLoss": (lambda _: RecallAtKLoss([1, 2, 4]), lambda each: each.with_sums(4)),
    "ContrastiveLoss": (lambda _: ContrastiveLoss(), lambda each: each.with_sums(4, 4)),
    "HistogramLoss": (lambda _: HistogramLoss(), lambda each: each.with_sums(808, 808)),
    "ProxyAnchorLoss, 64 classes": (
        lambda dim: ProxyAnchorLoss(CLASSES, dim),
        lambda each: [*each.embeddings, ("weights", each.centers)],
    ),
    "CenterContrastiveLoss, 64 classes": (
        lambda dim: CenterContrastiveLoss(CLASSES, dim),
        lambda each: [each.embeddings[0], ("weights", each.centers)],
    ),
    "CenterContrastiveLoss, sharded": (
        lambda dim: CenterContrastiveLoss(CLASSES, dim, sharded=True),
        lambda each: each.with_sums(*4 * [4 * each.world * each.batch]),  # in more calls with more than 384 samples
    ),
    "ContextualLoss, dense": (lambda _: ContextualLoss(4), Setting.contextual),
    "ContextualLoss, sigmoid": (lambda _: ContextualLoss(4, theta="sigmoid"), Setting.sigmoid),
    SPARSE: (lambda _: ContextualLoss(4), Setting.sparse),
}


class System(nn.Module):
    """A model and a loss as the trainer has them."""

    def __init__(self, loss: Loss, dim: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model, self.loss = nn.Linear(FEATURES, dim, bias=False), loss

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return self.loss.parts(PairSource.from_distributed_batch(self.model(x), labels))


def count(batch: int, dim: int, rank: int, world: int) -> dict[str, Any]:
    """The messages of a step per loss, without the gradient of the layer."""
    found = {}
    for name, (make, _) in LOSSES.items():
        contextual.MIN_SPARSE_SAMPLES, contextual.MAX_DENSITY = (0, 1.0) if name == SPARSE else (10**9, 0.0)
        system = System(make(dim), dim)
        exclude_from_ddp(system, "32")
        module = DistributedDataParallel(system) if world > 1 else system
        labels = torch.arange(batch * world).view(world, batch)[rank] // 4 % CLASSES
        for _ in range(3):  # in the second step DistributedDataParallel agrees on the order of gradients
            with CollectiveCounter() as counter, distributed.equal_lengths():
                step(module, labels)
        layer = 4 * system.model.weight.numel()
        weights = layer if sharded_losses(system) else sum(4 * each.numel() for each in system.parameters())
        found[name] = [
            ("weights", size - layer) if size == weights else (kind, size) for kind, size in counter.messages
        ]
    return found


def step(module: nn.Module, labels: torch.Tensor) -> None:
    """Value and gradient of a step, and its message of control."""
    terms = module(torch.randn(len(labels), FEATURES), labels)
    torch.autograd.backward(torch.stack([*terms.values()]).sum())
    StepMessage.exchange([terms], with_terms=False, is_stopping=False, is_saving=False, shard_squares=None)


def wire_bytes(messages: Messages, world: int) -> float:
    """The bytes that a process sends where operations go around in a ring."""
    part = (world - 1) / world
    factors = {"allgather": world - 1.0, "reduce_scatter": part, "alltoall": part}
    return sum(size * factors.get(name, 2 * part) for name, size in messages)


def predicted(name: str, setting: Setting) -> Messages:
    """The messages of a step by formula."""
    messages = [*LOSSES[name][1](setting), ("allreduce", CONTROL)]
    return messages if any(kind == "weights" for kind, _ in messages) else [*messages, ("weights", 0)]


def row(name: str, setting: Setting, found: dict[int, list[dict[str, Messages]]]) -> str:
    """A line of the table; raises an error if a formula is not what was counted."""
    counted = {world: found[world][0][name] for world in (2, 4)}
    for world, messages in counted.items():
        formula = predicted(name, replace(setting, world=world))
        if name == SPARSE:  # whose number of neighbors depends on the data
            messages, formula = ([(kind, 0.0) for kind, _ in each] for each in (messages, formula))
        assert sorted(messages) == sorted(formula), (name, world, messages, formula)
    assert not found[1][0][name]
    large = replace(setting, world=COMPUTED)
    formulas = {world: predicted(name, replace(setting, world=world)) for world in (2, 4, COMPUTED)}
    sizes = [wire_bytes(messages, world) for world, messages in formulas.items()]
    times = sizes[-1] / wire_bytes(large.least, COMPUTED)
    return f"| {name} | {len(counted[4])} | " + " | ".join(map(megabytes, sizes)) + f" | {times:.2f} |"


def megabytes(size: float) -> str:
    return f"{size / 1e6:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64, help="images of each process")
    parser.add_argument("--dim", type=int, default=512, help="dimensions of an embedding")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = run_groups(functools.partial(count, arguments.batch, arguments.dim), WORLDS, Path(folder))
    setting = Setting(2, arguments.batch, arguments.dim)
    least = [wire_bytes(replace(setting, world=world).least, world) for world in (2, 4, COMPUTED)]
    print(f"| loss | calls | MB with 2 | MB with 4 | MB with {COMPUTED}, computed | / least |")
    print("|---|---|---|---|---|---|")
    print("| least possible | 4 | " + " | ".join(map(megabytes, least)) + " | 1 |")
    for name in LOSSES:
        print(row(name, setting, found))


if __name__ == "__main__":
    main()
