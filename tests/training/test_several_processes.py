"""What processes of a run do together is what one process does alone, with few messages."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.processes import CollectiveCounter, run_groups
from vicinal.data import ImageDataset, ImageTransform, Table
from vicinal.data.batches.image_dataset import UnreadableImageError
from vicinal.distillation import S2SD
from vicinal.evaluation import evaluate
from vicinal.losses import (
    BinomialDevianceLoss,
    ContextualLoss,
    ContrastiveLoss,
    HistogramLoss,
    Loss,
    MarginLoss,
    MultiSimilarityLoss,
    NCALoss,
    NormSoftmaxLoss,
    NTXentLoss,
    ProxyAnchorLoss,
    RecallAtKLoss,
    SmoothAPLoss,
    TripletLoss,
)
from vicinal.losses.contextual import dense
from vicinal.losses.contextual import loss as contextual
from vicinal.memory import CrossBatchMemory
from vicinal.mining import DistanceWeightedMiner
from vicinal.mixing import SiMix
from vicinal.similarity.pair_source import PairSource
from vicinal.training.compatibility import CompatibilityLoss
from vicinal.training.divided_work import embed_divided, find_unreadable
from vicinal.training.step_message import StepMessage
from vicinal.utils import distributed

WORLD = 3
SIZE, DIM, STEPS = 24, 6, 2  # of each batch, over all processes
EQUAL = STEPS * [(torch.arange(SIZE) // 4).roll(2)]
# Classes split between the processes or not; in one step one process has singletons alone.
UNEQUAL = [
    torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 1, 3, 4, 0, 0, 2, 5, 5, 3, 3, 1, 4, 2, 0, 5, 5]),
    torch.tensor([5, 6, 7, 8, 9, 10, 11, 12, 1, 2, 2, 2, 2, 3, 3, 1, 4, 4, 0, 0, 0, 3, 1, 4]),
]


def compatibility() -> Loss:
    loss = CompatibilityLoss(SIZE // 4, DIM)
    loss.set_old_centers(torch.randn(SIZE // 4, DIM))
    return ContrastiveLoss() + 0.5 * loss


OF_MIXTURES: dict[str, Callable[[], Loss]] = {
    "sum": lambda: SiMix(BinomialDevianceLoss()),
    "anchors": lambda: SiMix(MultiSimilarityLoss(tile_rows=3)),
    "anchors, few": lambda: SiMix(BinomialDevianceLoss(reduction="anchors"), virtual_per_class=2),
    "contributing": lambda: SiMix(RecallAtKLoss(k=[1, 3])),
    "contributing, AP": lambda: SiMix(SmoothAPLoss(tile_rows=2), seed=3),
    "pairs": lambda: SiMix(NTXentLoss()),
    "pairs of triplets": lambda: SiMix(TripletLoss(tile_rows=4)),
    "violating": lambda: SiMix(ContrastiveLoss()),
    "histogram": lambda: SiMix(HistogramLoss(bins=20)),
    "drawn and learned": lambda: SiMix(MarginLoss(nu=0.1)),
    "drawn triplets": lambda: SiMix(TripletLoss(miner=DistanceWeightedMiner(num_samples=2)), virtual_per_class=3),
    "sum of losses": lambda: SiMix(0.5 * ContrastiveLoss() + RecallAtKLoss()) + 2 * NCALoss(),
    "memory": lambda: CrossBatchMemory(SiMix(RecallAtKLoss(k=2)), 100),
    "memory, anchors": lambda: CrossBatchMemory(SiMix(MultiSimilarityLoss(tile_rows=3)), 17, warmup=1),
    "memory, sum": lambda: CrossBatchMemory(SiMix(NCALoss(), virtual_per_class=2), 7),
    "memory, pairs": lambda: CrossBatchMemory(SiMix(NTXentLoss()), 30),
    "memory, drawn": lambda: CrossBatchMemory(SiMix(MarginLoss(nu=0.1)), 30),
}
LOSSES: dict[str, Callable[[], Loss]] = {
    "contextual": lambda: ContextualLoss(3),
    "contextual, rows in parts": lambda: ContextualLoss(3),
    "contextual, sparse": lambda: ContextualLoss(3),
    "contextual, k of the batch": ContextualLoss,
    "contextual, ablations": lambda: ContextualLoss(4, detach_sizes=False, correct_gradient=True, expansion=False),
    "contextual, sigmoid and minimum": lambda: ContextualLoss(
        3, theta="sigmoid", conjunction="min", detach_sizes=False
    ),
    "contextual, minimum without": lambda: ContextualLoss(
        4, conjunction="min", complement=False, expansion=False, correct_gradient=True
    ),
    "contextual, sigmoid, memory": lambda: CrossBatchMemory(ContextualLoss(4, theta="sigmoid"), 31),
    "proxy anchor": lambda: ProxyAnchorLoss(SIZE // 4, DIM),
    "compatibility": compatibility,
    "S2SD, pairs": lambda: S2SD(MultiSimilarityLoss(), (7, 9), DIM, feature_warmup=0),
    "S2SD, violating": lambda: S2SD(ContrastiveLoss(), (7, 9), DIM, feature_warmup=0),
    "S2SD, centers": lambda: S2SD(NormSoftmaxLoss(SIZE // 4, DIM), (7, 9), DIM, feature_warmup=0),
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
    """A model and a loss as the trainer has them; the features of an embedding are the embedding itself."""

    def __init__(self, make: Callable[[], Loss]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model, self.loss = nn.Linear(8, DIM), make()
        self.double()

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        embeddings = self.model(x)
        return self.loss.parts(PairSource.from_distributed_batch(embeddings, labels, embeddings))


def steps(name: str, rank: int = 0, world: int = 1) -> dict[str, list[Tensor]]:
    """Loss and gradient of some steps of training, each on its own batch of clusters."""
    system = System({**LOSSES, **OF_MIXTURES}[name])
    module = system if world == 1 else DistributedDataParallel(system)
    optimizer = torch.optim.SGD(system.parameters(), lr=0.1)
    seen: dict[str, list[Tensor]] = {"loss": [], "gradient": []}
    mine = slice(rank * SIZE // world, (rank + 1) * SIZE // world)
    centers = torch.randn(SIZE, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(7))
    for step, labels in enumerate(UNEQUAL if name in OF_MIXTURES else EQUAL):
        generator = torch.Generator().manual_seed(step)
        x = centers[labels] + 0.4 * torch.randn(SIZE, 8, dtype=torch.float64, generator=generator)
        value = torch.stack([*module(x[mine], labels[mine]).values()]).sum()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        seen["loss"].append(distributed.all_reduce_mean(value.detach()))
        seen["gradient"] += [parameter.grad.clone() for parameter in system.parameters()]
    return seen


def calls_of_a_step(make: Callable[[], Loss], rank: int, world: int) -> list[tuple[str, int]]:
    module = DistributedDataParallel(System(make))
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
    result: dict[str, Any] = {}
    for name in LOSSES:
        with pytest.MonkeyPatch.context() as patch:
            if name.endswith("rows in parts"):
                patch.setattr(dense, "MAX_GATHERED", 2 * SIZE * world)  # two at a time
            if name.endswith("sparse"):
                patch.setattr(contextual, "MIN_SPARSE_SAMPLES", 0)
                patch.setattr(contextual, "MAX_DENSITY", 1.0)
            result[name] = steps(name, rank, world)
    result["calls"] = {name: calls_of_a_step(make, rank, world) for name, (make, _) in MAX_CALLS.items()}
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
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_groups(together, (WORLD,), tmp_path_factory.mktemp("processes"))[WORLD]


def assert_as_one_process(name: str, results: list[dict[str, Any]]) -> None:
    expected = steps(name)
    assert max(gradient.abs().max() for gradient in expected["gradient"]) > 1e-3
    for result in results:
        for what, tensors in expected.items():
            for got, wanted in zip(result[name][what], tensors, strict=True):
                message = f"{name}, {what}"
                torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-12, msg=lambda m, n=message: f"{n}: {m}")


@pytest.mark.parametrize("name", LOSSES)
def test_several_processes_have_the_loss_and_the_gradient_of_one(name: str, results: list[dict[str, Any]]) -> None:
    assert_as_one_process(name, results)


def mixtures(rank: int, world: int) -> dict[str, Any]:
    return {name: steps(name, rank, world) for name in OF_MIXTURES}


@pytest.mark.slow
def test_several_processes_mix_as_one(tmp_path: Path) -> None:
    results = run_groups(mixtures, (WORLD,), tmp_path)[WORLD]
    for name in OF_MIXTURES:
        assert_as_one_process(name, results)


@pytest.mark.parametrize("name", MAX_CALLS)
def test_a_step_takes_few_messages(name: str, results: list[dict[str, Any]]) -> None:
    for result in results:
        assert 4 <= len(result["calls"][name]) <= MAX_CALLS[name][1], result["calls"][name]


def test_one_message_tells_all_of_a_step(results: list[dict[str, Any]]) -> None:
    mean, squares = (WORLD - 1) / 2, WORLD * (WORLD + 1) / 2
    expected = StepMessage(mean + 2.0, {"A": mean, "B": 2.0}, True, False, squares)
    assert all(result["message"] == expected and not result["finite"] for result in results)


def test_validation_is_divided(results: list[dict[str, Any]]) -> None:
    vectors, tables = photos_of_classes()
    expected = {name: evaluate(vectors, table, metrics=["recall@3"]).metrics for name, table in tables.items()}
    for result in results:
        assert result["metrics"] == expected
        assert np.array_equal(result["embedded"], vectors)
        assert result["batches"] == -(-7 // WORLD)  # sharded weights need as many on each
        assert result["unequal"].tolist() == [[rank, rank] for rank in range(WORLD) for _ in range(rank)]
        assert result["broadcast"] == [0.0, 0.0, 0.0, 0.0]


def test_images_are_looked_at_by_one_process_and_all_know_which_cannot_be_read(results: list[dict[str, Any]]) -> None:
    expected = {row: f"row {row}: lost" for row in range(0, 1000, 100)}
    assert all(list(result["unreadable"].items()) == list(expected.items()) for result in results)
    assert sorted(row for result in results for row in result["looked at"]) == list(range(1000))
