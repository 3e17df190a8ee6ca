"""What processes of a run do together is what one process does alone, with few messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.processes import CollectiveCounter, Results, run_groups
from vicinal.data import ImageDataset, ImageTransform, Table
from vicinal.data.batches.image_dataset import UnreadableImageError
from vicinal.evaluation import evaluate
from vicinal.losses import (
    ContextualLoss,
    ContrastiveLoss,
    HistogramLoss,
    Loss,
    MultiSimilarityLoss,
    ProxyAnchorLoss,
    RecallAtKLoss,
)
from vicinal.losses.contextual import dense
from vicinal.losses.contextual import loss as contextual
from vicinal.memory import CrossBatchMemory
from vicinal.similarity.pair_source import PairSource
from vicinal.training.divided_work import divided_rows, embed_divided, find_unreadable
from vicinal.training.step_message import StepMessage
from vicinal.utils import distributed

WORLDS = (3,)
SIZE, DIM, STEPS = 24, 6, 2  # of each batch, over all processes

LOSSES: dict[str, Callable[[], Loss]] = {
    "contextual": lambda: ContextualLoss(3),
    "contextual, k of the batch": ContextualLoss,
    "contextual, ablations": lambda: ContextualLoss(4, detach_sizes=False, correct_gradient=True, expansion=False),
    "contextual, sigmoid and minimum": lambda: ContextualLoss(
        3, theta="sigmoid", conjunction="min", detach_sizes=False
    ),
    "contextual, minimum without": lambda: ContextualLoss(
        4, conjunction="min", complement=False, expansion=False, correct_gradient=True
    ),
    "proxy anchor": lambda: ProxyAnchorLoss(SIZE // 4, DIM),
    "contextual, sigmoid, memory": lambda: CrossBatchMemory(ContextualLoss(4, theta="sigmoid"), 31),
}
MAX_CALLS: dict[str, tuple[Callable[[], Loss], int]] = {
    # The gradient of the weights, that of the embeddings, the embeddings, and the control message; then what the loss
    # itself must know of all processes.
    "pair": (MultiSimilarityLoss, 4),
    "ranking": (lambda: RecallAtKLoss([1, 2]), 5),
    "memory": (lambda: CrossBatchMemory(MultiSimilarityLoss(), 100), 4),
    "pair, mean over violating pairs": (ContrastiveLoss, 6),
    "histogram": (HistogramLoss, 6),
    "contextual": (lambda: ContextualLoss(3), 24),
}


class System(nn.Module):
    """A model and a loss as the trainer has them."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model, self.loss = nn.Linear(8, DIM), loss
        self.double()

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return self.loss.parts(PairSource.from_distributed_batch(self.model(x), labels))


def steps(system: System, module: nn.Module, rank: int = 0, world: int = 1) -> dict[str, list[Tensor]]:
    """Loss and gradient of some steps of training, each on its own batch of clusters."""
    optimizer = torch.optim.SGD(system.parameters(), lr=0.1)
    seen: dict[str, list[Tensor]] = {"loss": [], "gradient": []}
    labels = (torch.arange(SIZE) // 4).roll(2)
    mine = slice(rank * SIZE // world, (rank + 1) * SIZE // world)
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        centers = torch.randn(SIZE // 4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
        x = centers[labels] + 0.4 * torch.randn(SIZE, 8, dtype=torch.float64, generator=generator)
        value = torch.stack([*module(x[mine], labels[mine]).values()]).sum()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        seen["loss"].append(distributed.all_reduce_mean(value.detach()))
        seen["gradient"] += [parameter.grad.clone() for parameter in system.parameters()]
    return seen


def calls_of_a_step(loss: Loss, rank: int, world: int) -> list[tuple[str, int]]:
    """The collective operations of one step of training."""
    system = System(loss)
    module = DistributedDataParallel(system)
    labels = torch.arange(SIZE).chunk(world)[rank] // 4
    for _ in range(3):  # in the second step DistributedDataParallel agrees on the order of gradients
        with CollectiveCounter() as counter, distributed.equal_lengths():
            terms = module(torch.randn(len(labels), 8, dtype=torch.float64), labels)
            torch.stack([*terms.values()]).sum().backward()
            message(terms)
    return counter.messages


def message(terms: dict[str, Tensor], rank: int = 0) -> StepMessage:
    squares = torch.tensor(float(rank + 1))
    return StepMessage.exchange(
        [terms, terms], with_terms=True, is_stopping=rank == 1, is_saving=False, shard_squares=squares
    )


def photos_of_classes() -> tuple[np.ndarray, dict[str, Table]]:
    rng = np.random.default_rng(0)
    labels = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 4, 4, 5])  # ends with an image that finds none of its class
    vectors = rng.normal(size=(len(labels), 5)).astype(np.float32)
    frame = pd.DataFrame({"label": labels})
    split = frame.assign(is_query=np.arange(len(labels)) % 3 == 0, is_gallery=np.arange(len(labels)) % 4 != 0)
    return vectors, {"all": Table(frame), "queries and gallery": Table(split)}


class SomeLost(ImageDataset):
    """Images of which every hundredth cannot be read."""

    def __init__(self, paths: list[str]) -> None:
        super().__init__(Table(pd.DataFrame({"path": paths})), ImageTransform(size=8))
        self.looked_at: list[int] = []

    def load(self, row: int, transform: object) -> Any:
        self.looked_at.append(row)
        if row % 100 == 0:
            raise UnreadableImageError(f"row {row}: lost")


def together(rank: int, world: int) -> dict[str, Any]:
    """All that a process of a group does for the tests below."""
    result: dict[str, Any] = {}
    for name, make in LOSSES.items():
        system = System(make())
        result[name] = steps(system, DistributedDataParallel(system), rank, world)
    dense.MAX_GATHERED, before = 2 * SIZE * world, dense.MAX_GATHERED  # rows come two at a time
    system = System(ContextualLoss(3))
    result["rows in parts"] = steps(system, DistributedDataParallel(system), rank, world)
    dense.MAX_GATHERED = before
    contextual.MIN_SPARSE_SAMPLES, contextual.MAX_DENSITY = 0, 1.0
    system = System(ContextualLoss(3))
    result["sparse"] = steps(system, DistributedDataParallel(system), rank, world)
    contextual.MIN_SPARSE_SAMPLES, contextual.MAX_DENSITY = 256, 1 / 40
    result["calls"] = {name: calls_of_a_step(make(), rank, world) for name, (make, _) in MAX_CALLS.items()}
    result["message"] = message({"A": torch.tensor(float(rank)), "B": torch.tensor(2.0)}, rank)
    infinite = {"A": torch.tensor(torch.inf if rank == 1 else 1.0)}
    result["finite"] = message(infinite).is_finite
    vectors, tables = photos_of_classes()
    evaluations = {name: evaluate(vectors, each, metrics=["recall@3"], divided=True) for name, each in tables.items()}
    result["metrics"] = {name: each.metrics for name, each in evaluations.items()}
    batches: list[int] = []

    def embed(rows: range) -> np.ndarray:
        batches.append(-(-len(rows) // 2))
        return vectors[rows.start : rows.stop]

    result["embedded"] = embed_divided(len(vectors), 2, embed)
    result["batches"] = sum(batches)
    result["unequal"] = distributed.all_gather_parts(torch.full((rank, 2), rank), list(range(world)))
    images = SomeLost(["lost"] * 1000)
    errors = find_unreadable(images)
    result["unreadable"], result["looked at"] = {row: str(error) for row, error in errors.items()}, images.looked_at
    tensors = [torch.full((2,), float(rank)), torch.tensor(rank), torch.full((1, 1), float(rank))]
    distributed.broadcast_tensors(tensors)
    result["broadcast"] = torch.cat([each.reshape(-1) for each in tensors]).tolist()
    return result


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run_groups(together, WORLDS, tmp_path_factory.mktemp("processes"))


@pytest.mark.parametrize("name", [*LOSSES, "rows in parts", "sparse"])
def test_several_processes_have_the_loss_and_the_gradient_of_one(name: str, results: Results) -> None:
    system = System(LOSSES.get(name, LOSSES["contextual"])())
    expected = steps(system, system)
    assert max(gradient.abs().max() for gradient in expected["gradient"]) > 1e-3
    for world in WORLDS:
        for result in results[world]:
            for what, tensors in expected.items():
                for got, wanted in zip(result[name][what], tensors, strict=True):
                    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-12, msg=lambda m, w=what: f"{w}: {m}")


@pytest.mark.parametrize("name", MAX_CALLS)
def test_a_step_takes_few_messages(name: str, results: Results) -> None:
    for world in WORLDS:
        for result in results[world]:
            assert 4 <= len(result["calls"][name]) <= MAX_CALLS[name][1], result["calls"][name]


def test_one_message_tells_all_of_a_step(results: Results) -> None:
    for world in WORLDS:
        mean, squares = (world - 1) / 2, world * (world + 1) / 2
        expected = StepMessage(mean + 2.0, {"A": mean, "B": 2.0}, True, False, squares)
        assert all(result["message"] == expected and not result["finite"] for result in results[world])


def test_validation_is_divided(results: Results) -> None:
    vectors, tables = photos_of_classes()
    expected = {name: evaluate(vectors, table, metrics=["recall@3"]).metrics for name, table in tables.items()}
    for world in WORLDS:
        for result in results[world]:
            assert result["metrics"] == expected
            assert np.array_equal(result["embedded"], vectors)
            assert result["batches"] == -(-7 // world)  # sharded weights need as many on each
            assert result["unequal"].tolist() == [[rank, rank] for rank in range(world) for _ in range(rank)]
            assert result["broadcast"] == [0.0, 0.0, 0.0, 0.0]


def test_images_are_looked_at_by_one_process_and_all_know_which_cannot_be_read(results: Results) -> None:
    expected = {row: f"row {row}: lost" for row in range(0, 1000, 100)}
    for world in WORLDS:
        assert all(list(result["unreadable"].items()) == list(expected.items()) for result in results[world])
        looked_at = [row for result in results[world] for row in result["looked at"]]
        assert sorted(looked_at) == list(range(1000))


def test_parts_are_whole_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "world_size", lambda: 3)
    parts = divided_rows(107, 10)
    assert [row for part in parts for row in part] == list(range(107))
    assert all(part.start % 10 == 0 for part in parts)
    assert max(map(len, parts)) - min(map(len, parts)) < 20
    assert [len(part) for part in divided_rows(4, 10)] in ([0, 4, 0], [0, 0, 4], [4, 0, 0])


def large(rank: int, world: int) -> dict[str, Any]:
    """The contextual loss of a batch of 4 x 500 embeddings, of which neighborhoods are large and so dense."""
    x, labels = batch_of(2000)
    mine = slice(rank * 2000 // world, (rank + 1) * 2000 // world)
    leaf = x[mine].clone().requires_grad_()
    value = sum(ContextualLoss().parts(PairSource.from_distributed_batch(leaf, labels[mine])).values())
    value.backward()
    return {"value": value.item(), "gradient": leaf.grad}


def batch_of(size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(size) // 100
    centers = torch.randn(size // 100, 16, generator=generator)
    return centers[labels] + torch.randn(size, 16, generator=generator), labels


@pytest.mark.slow
def test_a_large_contextual_batch_over_processes(tmp_path: Path) -> None:
    x, labels = batch_of(2000)
    leaf = x.clone().requires_grad_()
    value = ContextualLoss()(leaf, labels)
    value.backward()
    for world, found in run_groups(large, (4, 2), tmp_path).items():
        gradient = torch.cat([each["gradient"] for each in found]) / world
        assert [each["value"] for each in found] == pytest.approx(world * [value.item()], rel=1e-5)
        assert (gradient - leaf.grad).norm() < 1e-5 * leaf.grad.norm()
