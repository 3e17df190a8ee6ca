"""Matryoshka equals separate losses of the prefixes, whatever the loss, and in training."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from torch import Tensor

from tests.losses import center_cases, every_loss
from tests.losses.batches import Batch, nasty_batches
from tests.losses.cases import DEFAULTS
from tests.losses.gradients import value_and_gradients
from tests.refusals import refused_call
from vicinal.distillation import S2SD
from vicinal.losses import (
    CenterBasedLoss,
    ClusterContrastLoss,
    ContextualLoss,
    ContrastiveLoss,
    CosFaceLoss,
    Loss,
    MarginLoss,
    MultiSimilarityLoss,
    NormSoftmaxLoss,
    ProxyNCALoss,
    RoadmapLoss,
    SimilarityRegularizer,
    TripletLoss,
)
from vicinal.matryoshka import Matryoshka
from vicinal.memory import CrossBatchMemory
from vicinal.mining import DistanceWeightedMiner
from vicinal.mixing import SiMix
from vicinal.similarity.pair_source import PairSource
from vicinal.training import Recipe
from vicinal.training.trainer import create_training_module

BATCHES = nasty_batches()
BY_LABEL = {
    "a loss of rows": MultiSimilarityLoss,
    "a random miner": lambda **more: TripletLoss(miner=DistanceWeightedMiner(), **more),
    "a sum": lambda: 0.5 * RoadmapLoss() + SimilarityRegularizer(),
    "contextual": lambda: ContextualLoss(k=2),
    "SiMix": lambda: SiMix(ContrastiveLoss()),
    "learned": lambda: MarginLoss(miner=None),
}


def dims_of(batch: Batch) -> list[int]:
    full = batch.embeddings.shape[1]
    return sorted({1, max(1, full // 2), full})


def weights_of(dims: list[int]) -> list[float]:
    return [0.5 + i for i in range(len(dims))]


def cut(batch: Batch, dim: int) -> Batch:
    references = None if batch.references is None else batch.references[:, :dim]
    return batch._replace(embeddings=batch.embeddings[:, :dim], references=references)


def separately(losses: list[Loss], dims: list[int]) -> Callable[..., Tensor]:
    """The definition: one loss per prefix."""

    def formula(*batch: Tensor | int) -> Tensor:
        values = [
            loss(*(x for x in cut(Batch(*batch), d) if x is not None)) for d, loss in zip(dims, losses, strict=True)
        ]
        return sum(weight * value for weight, value in zip(weights_of(dims), values, strict=True))

    return formula


def assert_same(make: Callable[[], Loss], batch: Batch, name: str) -> None:
    dims = dims_of(batch)
    loss, losses = Matryoshka(make().double(), dims, weights_of(dims)), [make().double() for _ in dims]
    got = value_and_gradients(loss, batch, list(loss.parameters()))
    learned = [list(each.parameters()) for each in losses]
    value, *others = value_and_gradients(separately(losses, dims), batch, [p for each in learned for p in each])
    by_input, by_parameter = others[: (split := len(others) - sum(map(len, learned)))], others[split:]
    summed = [sum(by_parameter[i :: len(learned[0])]) for i in range(len(learned[0]))]
    torch.testing.assert_close(
        got, [value, *by_input, *summed], rtol=1e-10, atol=1e-12, msg=lambda text: f"{name}: {text}"
    )


@pytest.mark.parametrize("case", DEFAULTS)
def test_value_and_gradients_are_those_of_separate_losses(case: str) -> None:
    """Each on a third of the batches: how the prefixes are made does not depend on the loss."""
    left_out = ("many classes", "shuffled", "all singletons", "two of two classes", "references of one class")
    names = [name for name in BATCHES if name not in left_out]
    for name in names[list(DEFAULTS).index(case) % 3 :: 3]:
        assert_same(DEFAULTS[case].loss, DEFAULTS[case].suited(BATCHES[name]), name)


@pytest.mark.parametrize("case", BY_LABEL)
def test_losses_around_and_inside(case: str) -> None:
    for name in ("unequal classes", "zero vector", "duplicates", "two of a class", "one class"):
        assert_same(BY_LABEL[case], BATCHES[name], name)


@pytest.mark.parametrize("case", center_cases.CASES)
def test_class_centers_are_cut_with_the_embeddings(case: str) -> None:
    """Each on a third of the batches: how the centers are cut does not depend on the loss."""
    for name in [*center_cases.BATCHES][list(center_cases.CASES).index(case) % 3 :: 3]:
        batch = center_cases.BATCHES[name]
        classes, dims = center_cases.classes_of(batch), dims_of(batch)
        if classes < 2 and center_cases.CASES[case].kind is ProxyNCALoss:
            continue
        whole = center_cases.CASES[case].loss(classes, dims[-1]).double()
        loss = Matryoshka(deepcopy(whole), dims, weights_of(dims))
        parameters = {name: p.detach().clone().requires_grad_(p.requires_grad) for name, p in whole.named_parameters()}

        def formula(x: Tensor, labels: Tensor, whole=whole, parameters=parameters, dims=dims) -> Tensor:
            return separately([with_cut_parameters(whole, parameters, dim) for dim in dims], dims)(x, labels)

        expected = value_and_gradients(formula, batch, list(parameters.values()))
        got = value_and_gradients(loss, batch, list(loss.parameters()))
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}")


def with_cut_parameters(loss: CenterBasedLoss, parameters: dict[str, Tensor], dim: int) -> CenterBasedLoss:
    copy = deepcopy(loss)
    for name, tensor in parameters.items():
        first = tensor[:, :dim] if tensor.ndim == 2 else tensor
        copy._parameters[name] = first if tensor.requires_grad else first.clone()
    return copy


def test_tiles_change_nothing() -> None:
    for name in ("unequal classes", "references around the batch"):
        whole = value_and_gradients(Matryoshka(MultiSimilarityLoss(), [2, 5]), BATCHES[name])
        tiled = value_and_gradients(Matryoshka(MultiSimilarityLoss(tile_rows=2), [2, 5]), BATCHES[name])
        torch.testing.assert_close(tiled, whole, rtol=1e-12, atol=1e-14)


def test_masks_and_relations_reach_every_prefix() -> None:
    batch = BATCHES["unequal classes"]
    equal = batch.labels[:, None] == batch.labels
    expected = Matryoshka(ContrastiveLoss(), [2, 5])(*batch)
    assert Matryoshka(ContrastiveLoss(), [2, 5])(batch.embeddings, positive=equal) == expected
    by_relation = Matryoshka(ContrastiveLoss(), [2, 5])(*batch[:2], relation=lambda a, b: a[:, None] == b)
    assert by_relation == expected


def test_a_memory_goes_around() -> None:
    first, second = BATCHES["unequal classes"], BATCHES["zero vector"]
    loss = CrossBatchMemory(Matryoshka(MultiSimilarityLoss(), [2, 5]), size=9)
    separate = [CrossBatchMemory(MultiSimilarityLoss(), size=9) for _ in range(2)]
    for batch in (first, second):
        got = value_and_gradients(loss, batch)
        cut_first = value_and_gradients(separate[0], cut(batch, 2))
        full = value_and_gradients(separate[1], batch)
        padded = torch.nn.functional.pad(cut_first[1], (0, 3))
        torch.testing.assert_close(got, [cut_first[0] + full[0], padded + full[1]], rtol=1e-12, atol=1e-12)


def test_a_call_counts_once_and_centers_move_once() -> None:
    batch = BATCHES["unequal classes"]
    for inner in (TripletLoss(miner=DistanceWeightedMiner()), SiMix(ContrastiveLoss())):
        Matryoshka(inner, [2, 5])(*batch)
        assert inner.calls == 1
    moving, alone = (ClusterContrastLoss(4, 5).double() for _ in range(2))
    alone.load_state_dict(moving.state_dict())
    Matryoshka(moving, [2, 5])(*batch)
    alone(*batch)
    torch.testing.assert_close(moving.centers, alone.centers)


def test_values_of_samples_add_up() -> None:
    batch = BATCHES["unequal classes"]
    for inner in (MultiSimilarityLoss(), NormSoftmaxLoss(4, 5).double()):
        loss = Matryoshka(inner, [2, 5], [0.5, 2.0]) + ContrastiveLoss(reduction="anchors")
        values = loss.anchor_values(PairSource.from_batch(*batch))
        torch.testing.assert_close(values.mean(), loss(*batch).detach())


@pytest.mark.parametrize("name", every_loss.EVERY_LOSS)
def test_goes_around_every_loss_in_half_precision(name: str) -> None:
    inner = every_loss.EVERY_LOSS[name]()
    if name == "CrossBatchMemory":
        return
    loss = Matryoshka(inner, [2, every_loss.DIM])
    x = torch.randn(12, every_loss.DIM, generator=torch.Generator().manual_seed(0), dtype=torch.bfloat16)
    x.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        loss(x, torch.arange(12) // 3).backward()
    assert x.grad.isfinite().all()
    assert all(
        part.endswith(("(2)", f"({every_loss.DIM})"))
        for part in loss.parts(PairSource.from_batch(x, torch.arange(12) // 3))
    )


def test_of_a_recipe() -> None:
    overrides = ["--data.source=digits", "--model.pretrained=false", "--model.backbone=test_resnet", "--model.dim=16"]
    given = ["--loss=Matryoshka", "--loss.loss=NormSoftmaxLoss", "--loss.dims=[4, 16]", "--loss.weights=[1, 0.5]"]
    loss = create_training_module(Recipe.load(overrides=[*overrides, *given]), ["a", "b", "c"], 9).loss
    assert (loss.dims, loss.weights, loss.loss.centers.shape) == ([4, 16], [1.0, 0.5], (3, 16))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["CosFace", *(name for name in BY_LABEL if name not in ("contextual", "SiMix"))])
def test_compiles_whole(name: str) -> None:
    torch._dynamo.reset()
    batch = BATCHES["unequal classes"].to(torch.float32)
    loss = Matryoshka(BY_LABEL[name]() if name in BY_LABEL else CosFaceLoss(12, 5), [2, 5])
    expected = value_and_gradients(deepcopy(loss), batch)
    got = value_and_gradients(torch.compile(loss, fullgraph=True), batch)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_mistakes_are_named_in_one_line() -> None:
    for make, message in (
        (lambda: Matryoshka(3), "^Matryoshka: loss must be a loss such as MultiSimilarityLoss.., not 3$"),
        (lambda: Matryoshka(Matryoshka(ContrastiveLoss())), "^Matryoshka: Matryoshka does not go inside"),
        (lambda: Matryoshka(CrossBatchMemory(ContrastiveLoss(), 9)), r"give CrossBatchMemory\(Matryoshka"),
        (lambda: Matryoshka(ContrastiveLoss() + S2SD(ContrastiveLoss())), "^Matryoshka: S2SD does not go inside"),
        (lambda: Matryoshka(ContrastiveLoss(), 8), "^Matryoshka: dims is 8; give a list of dimensions"),
        (lambda: Matryoshka(ContrastiveLoss(), []), r"^Matryoshka: dims = \[\] must be whole numbers"),
        (lambda: Matryoshka(ContrastiveLoss(), [4, 2]), r"^Matryoshka: dims = \[4, 2\] must .* ascending$"),
        (lambda: Matryoshka(ContrastiveLoss(), [2, 2]), "ascending$"),
        (lambda: Matryoshka(ContrastiveLoss(), [0, 2]), "from 1 to 65,536, ascending$"),
        (lambda: Matryoshka(ContrastiveLoss(), [2, 4], [1]), "^Matryoshka: 1 weights and 2 dims; give one weight"),
        (lambda: Matryoshka(ContrastiveLoss(), [2], [-1]), "^Matryoshka: weights = -1 must be at least 0"),
        (lambda: Matryoshka(ContrastiveLoss(), [2, 6])(*BATCHES["one class"]), "have 5 dimensions, fewer than .*, 6;"),
        (lambda: Matryoshka(NormSoftmaxLoss(1, 8), [2, 4])(*BATCHES["one class"]), "embeddings have 5 dimensions and"),
        (lambda: SiMix(Matryoshka(ContrastiveLoss())), "^SiMix: .* not Matryoshka$"),
    ):
        refused_call(message, make)
