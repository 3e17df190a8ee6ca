"""The contextual loss against the formulas of its paper, on batches where neighborhoods go wrong; its propositions."""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from tests.losses.contextual_reference import TIE, VARIANTS, contextual_similarity, loss_of_labels, loss_of_pairs
from tests.refusals import refused_call
from tests.test_mixing import Seen
from vicinal.losses import ContextualLoss
from vicinal.losses.contextual import dense, sparse
from vicinal.losses.contextual import loss as contextual_loss
from vicinal.losses.contextual.sparse import sparse_loss
from vicinal.mixing import SiMix


class Sample(NamedTuple):
    """Embeddings with their labels, and the k that suits them."""

    x: Tensor
    labels: Tensor
    k: int


def clusters(classes: int, size: int, dim: int, spread: float, seed: int = 0) -> Sample:
    """Classes around centers of their own, in any order: the wider the spread, the less was learned."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randperm(classes * size, generator=generator) % classes
    centers = torch.randn(classes, dim, generator=generator, dtype=torch.float64)
    noise = torch.randn(len(labels), dim, generator=generator, dtype=torch.float64)
    return Sample(centers[labels] + spread * noise, labels, size)


def hypercube(dim: int) -> Tensor:
    """All corners. Their similarities are numbers that are never rounded, so there are many exact ties."""
    return torch.tensor(list(itertools.product([-0.5, 0.5], repeat=dim)), dtype=torch.float64)


def samples() -> dict[str, Sample]:
    def random(n: int, dim: int = 5, seed: int = 0) -> Tensor:
        return torch.randn(n, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)

    def classes(*labels: int) -> Tensor:
        return torch.tensor(labels)

    one, unequal = random(1), classes(0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3)
    two_each = classes(0, 1, 2, 2, 1, 0)
    close = torch.ones(1, 16, dtype=torch.float64)
    return {
        "8, k = 2": clusters(4, 2, 4, 0.8),
        "9, k = 3": clusters(3, 3, 4, 0.8),
        "16, k = 4": clusters(4, 4, 6, 0.8),
        "20, k = 5": clusters(4, 5, 6, 0.8),
        "24, k = 8": clusters(3, 8, 6, 1.0),
        "28, k = 7, nothing learned": clusters(4, 7, 6, 3.0),
        "24, k = 6, learned": clusters(4, 6, 8, 0.1),
        "two classes": clusters(2, 4, 3, 1.0),
        "all near each other": Sample(close + 0.02 * random(16, 16, 1), torch.arange(16) % 4, 4),
        "rather near each other": Sample(close + 0.2 * random(16, 16, 2), torch.arange(16) // 4, 4),
        "unequal classes": Sample(random(12, 5, 3), unequal, 3),
        "unequal classes, k too small": Sample(random(12, 5, 4), unequal, 2),
        "unequal classes, k odd": Sample(random(12, 5, 5), unequal.flip(0), 5),
        "singletons": Sample(random(6, 5, 6), classes(5, 9, 9, 7, 9, 6), 3),
        "all singletons": Sample(random(7, 5, 7), torch.arange(7), 4),
        "one class": Sample(random(5, 5, 8), torch.zeros(5, dtype=torch.int64), 5),
        "one class, k small": Sample(random(9, 5, 9), torch.zeros(9, dtype=torch.int64), 4),
        "two of a class": Sample(random(2, 5, 10), classes(3, 3), 2),
        "two of two classes": Sample(random(2, 5, 11), classes(3, 4), 2),
        "k beyond the batch": Sample(random(6, 5, 12), two_each, 40),
        "k is the batch": Sample(random(7, 5, 13), classes(0, 0, 0, 1, 1, 1, 1), 7),
        "duplicates": Sample(torch.cat([one, one, one, random(5, 5, 14)]), classes(0, 0, 1, 1, 2, 2, 3, 3), 2),
        "every sample twice": Sample(random(6, 5, 15).repeat(2, 1), torch.arange(12) % 3, 4),
        "same direction": Sample(torch.cat([one, 3 * one, random(4, 5, 16)]), classes(0, 1, 0, 1, 2, 2), 2),
        "collapsed": Sample(one.repeat(8, 1), torch.arange(8) % 2, 4),
        "opposites": Sample(torch.cat([random(4, 5, 17), -random(4, 5, 17)]), torch.arange(8) % 4, 2),
        "one dimension": Sample(random(6, 1, 18), two_each, 2),
        "zero vector": Sample(torch.cat([0 * one, random(5, 5, 19)]), two_each, 2),
        "far labels": Sample(random(6, 5, 20), classes(-7, -7, 2**40, 2**40, 0, 0), 2),
        "corners": Sample(hypercube(4), torch.arange(16) % 4, 4),
        "corners, more than once": Sample(hypercube(4).repeat(2, 1), torch.arange(32) // 8, 8),
    }


SAMPLES = samples()
TIED = {
    "duplicates",
    "every sample twice",
    "same direction",
    "collapsed",
    "opposites",
    "one dimension",
    "zero vector",
    "corners",
    "corners, more than once",
}
"""Those with distances that are equal, but for rounding."""
EPSILONS = (0.0, 0.05, 0.5, 1.0)  # the last ones are steps between corners, so that borders themselves are tied
FEW_EPSILONS = EPSILONS[1:3]


def value_and_gradient(loss: Callable[..., Tensor], x: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    x = x.detach().clone().requires_grad_()
    value = loss(x, *arguments)
    (gradient,) = torch.autograd.grad(value, x)
    return value.detach(), gradient


def ours(sample: Sample, **options: Any) -> tuple[Tensor, Tensor]:
    return value_and_gradient(lambda x: ContextualLoss(sample.k, **options)(x, sample.labels), sample.x)


def by_hand(sample: Sample, **options: Any) -> tuple[Tensor, Tensor]:
    return value_and_gradient(lambda x: loss_of_labels(x, sample.labels, sample.k, **options), sample.x.double())


def assert_near(
    got: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], relative: float = 1e-9, message: str = ""
) -> None:
    """Value and gradient each differ by a small fraction of their length; where it is 0, by next to nothing."""
    for what, a, b in zip(("value", "gradient"), got, expected, strict=True):
        allowed = relative * b.norm() + 1e-5 * relative
        assert (a.double() - b).norm() <= allowed, f"{message}: {what} {a} is not {b}"


# The formulas ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_value_and_gradient(variant: str) -> None:
    """Three variants with every epsilon; the others with one for each sample, of which each begins with another."""
    for number, (name, sample) in enumerate(SAMPLES.items()):
        if variant == "min, sigmoid" and name in TIED:
            continue  # rounding would decide which of two equal numbers is the minimum
        turn = 0 if variant == "sharp sigmoid" else (number + list(VARIANTS).index(variant)) % 2
        for epsilon in EPSILONS if variant in ("the paper's", "min", "sigmoid") else (FEW_EPSILONS[turn],):
            options = {"epsilon": epsilon, **VARIANTS[variant]}
            if options.get("theta") == "sigmoid" and epsilon > 5 * options.get("temperature", 0.1):
                continue  # where all are neighbors, rounding hides by how little they are neighbors
            assert_near(ours(sample, **options), by_hand(sample, **options), message=f"{name}, epsilon {epsilon}")


@pytest.mark.parametrize("theta", ["step", "sigmoid"])
@pytest.mark.parametrize("conjunction", ["product", "min"])
@pytest.mark.parametrize("expansion", [False, True])
@pytest.mark.parametrize("intersection", [False, True])
def test_all_combinations_of_options(theta: str, conjunction: str, intersection: bool, expansion: bool) -> None:
    steps = {"theta": theta, "conjunction": conjunction, "intersection": intersection, "expansion": expansion}
    others = ("complement", "detach_sizes", "detach_expansion_size", "correct_gradient")
    for switches in itertools.product([False, True], repeat=len(others)):
        options = steps | dict(zip(others, switches, strict=True)) | {"epsilon": 0.2}
        for name in ("two classes", "unequal classes", "duplicates", "corners"):
            if (theta, conjunction) == ("sigmoid", "min") and name in TIED:
                continue  # as above
            assert_near(ours(SAMPLES[name], **options), by_hand(SAMPLES[name], **options), message=f"{name} {options}")


@pytest.mark.parametrize(
    ("classes", "size"), [(13, 5), (64, 2), (43, 3), (32, 8), pytest.param(128, 4, marks=pytest.mark.slow)]
)
def test_large_batches(classes: int, size: int) -> None:
    for spread in (0.05, 0.4, 0.8, 3.0):
        sample = clusters(classes, size, 32, spread, seed=classes)
        for options in ({}, {"epsilon": 0.0}, {"epsilon": 0.3, "detach_sizes": False}, {"theta": "sigmoid"}):
            assert_near(ours(sample, **options), by_hand(sample, **options), message=f"{spread} {options}")


@pytest.mark.parametrize("variant", VARIANTS)
def test_float32(variant: str) -> None:
    for name, relative in (("16, k = 4", 1e-5), ("24, k = 6, learned", 1e-5), ("corners", 1e-6), ("collapsed", 1e-5)):
        sample = SAMPLES[name]._replace(x=SAMPLES[name].x.float())
        got = ours(sample, **VARIANTS[variant])
        assert got[0].dtype == got[1].dtype == torch.float32
        expected = by_hand(sample, **VARIANTS[variant])
        if variant == "min, sigmoid":
            relative = 5e-3  # complements of small numbers are rounded, so that some become equal
        for a, b in zip(got, expected, strict=True):
            assert (a - b).norm() <= relative * b.norm() + 1e-5, name


def test_k_is_the_size_of_the_classes() -> None:
    for name in ("8, k = 2", "20, k = 5", "24, k = 8", "one class", "two of a class", "corners"):
        sample = SAMPLES[name]
        value = ContextualLoss()(sample.x, sample.labels)
        torch.testing.assert_close(value, ContextualLoss(sample.k)(sample.x, sample.labels), rtol=0, atol=0)
    for few in (0, 1):  # without a pair it does not matter
        assert ContextualLoss()(torch.randn(few, 4), torch.zeros(few, dtype=torch.int64)) == 0


# Propositions ---------------------------------------------------------------------------------------------------------


def ranks_all_positives_first(x: Tensor, labels: Tensor) -> bool:
    """Of every sample every positive is more similar than every negative."""
    f = torch.nn.functional.normalize(x)
    s, same = f @ f.T, labels[:, None] == labels
    others = ~torch.eye(len(x), dtype=torch.bool)
    worst, best = s.masked_fill(~(same & others), math.inf).amin(1), s.masked_fill(same, -math.inf).amax(1)
    return bool((worst > best + TIE).all())


def test_proposition_4_1() -> None:
    """With epsilon = 0 the loss is 0 if and only if all samples are ranked correctly."""
    seen = {True: 0, False: 0}
    for seed in range(300):
        k, classes = 2 + seed % 4, 3 + seed % 3
        sample = clusters(classes, k, 6, (0.1, 0.25, 0.4, 0.6)[seed % 4 ^ seed % 3], seed)
        value = ContextualLoss(epsilon=0.0)(sample.x, sample.labels).item()
        ranked = ranks_all_positives_first(sample.x, sample.labels)
        assert value < 1e-20 if ranked else value > 1e-5, seed
        seen[ranked] += 1
    assert min(seen.values()) > 50


# Without k ------------------------------------------------------------------------------------------------------------


def test_unequal_classes_and_references_need_a_k() -> None:
    """The size of a class in a memory depends on the batches before; references beside the batch have no neighbors."""
    x = torch.randn(6, 4)
    same = torch.eye(6, dtype=torch.bool)
    for arguments in (
        {"labels": torch.tensor([0, 0, 1, 1, 1, 2])},
        {"labels": torch.arange(6)},  # k = 1
        {"labels": torch.arange(6), "relation": lambda a, b: (a[:, None] - b).abs() < 2},
        {"positive": same},
    ):
        refused_call(r"^ContextualLoss: .*\bk\b", ContextualLoss(), x, **arguments)
        assert ContextualLoss(k=2)(x, **arguments).isfinite()
    labels = torch.arange(6) // 2
    refused_call(r"with references .* give k", ContextualLoss(), x[2:4], labels[2:4], x, labels, 2)
    refused_call("offset", ContextualLoss(2), x, labels, torch.randn(6, 4), labels)


# Pairs given otherwise, references ------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
def test_masks_say_the_pairs(variant: str) -> None:
    """They need be neither complete nor symmetric; pairs in neither mask are not summed."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(14, 5, generator=generator, dtype=torch.float64)
    kind = torch.randint(3, (14, 14), generator=generator)
    loss = ContextualLoss(3, **VARIANTS[variant])
    got = value_and_gradient(lambda x: loss(x, positive=kind == 0, negative=kind == 1), x)
    options = VARIANTS[variant]
    assert_near(got, value_and_gradient(lambda x: loss_of_pairs(x, kind == 0, kind == 1, 3, **options), x))
    got = value_and_gradient(lambda x: loss(x, positive=kind == 0), x)
    assert_near(got, value_and_gradient(lambda x: loss_of_pairs(x, kind == 0, kind != 0, 3, **options), x))


@pytest.mark.parametrize("variant", VARIANTS)
def test_among_references_the_batch_is_all_of_them(variant: str) -> None:
    sample = SAMPLES["unequal classes"]
    expected = by_hand(sample, **VARIANTS[variant])
    loss = ContextualLoss(sample.k, **VARIANTS[variant])
    for start, stop in ((0, 12), (0, 4), (3, 9), (11, 12)):

        def of_part(x: Tensor, part: slice = slice(start, stop)) -> Tensor:
            return loss(x[part], sample.labels[part], x, sample.labels, part.start)

        assert_near(value_and_gradient(of_part, sample.x), expected)


# The two ways to compute it -------------------------------------------------------------------------------------------

SPARSE = [
    name
    for name, options in VARIANTS.items()
    if "theta" not in options and "conjunction" not in options and "correct_gradient" not in options
]


@pytest.fixture
def sparse_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the batches that are computed by sparse matrices, which now are all that may be."""
    calls = []

    def counted(vectors: Tensor, *arguments: Any) -> Tensor:
        calls.append(len(vectors))
        return sparse_loss(vectors, *arguments)

    monkeypatch.setattr(contextual_loss, "sparse_loss", counted)
    monkeypatch.setattr(contextual_loss, "MIN_SPARSE_SAMPLES", 1)
    monkeypatch.setattr(contextual_loss, "MAX_DENSITY", 1.0)
    return calls


def test_sparse_matrices_give_the_same(sparse_calls: list[int]) -> None:
    for name, sample in SAMPLES.items():
        for epsilon in EPSILONS:
            options = {"epsilon": epsilon}
            assert_near(ours(sample, **options), by_hand(sample, **options), message=f"{name}, epsilon {epsilon}")
    assert sparse_calls == [len(sample.x) for sample in SAMPLES.values() for _ in EPSILONS]


@pytest.mark.parametrize("switches", [*itertools.product([False, True], repeat=3)])
def test_sparse_matrices_give_the_same_for_all_options(switches: tuple[bool, ...], sparse_calls: list[int]) -> None:
    """In a small batch, where all are neighbors, with an odd k, and in a large batch."""
    steps = dict(zip(("complement", "intersection", "expansion"), switches, strict=True))
    small, odd, large = SAMPLES["20, k = 5"], SAMPLES["unequal classes, k odd"], clusters(32, 4, 16, 0.5, seed=8)
    for detached in itertools.product([False, True], repeat=2):
        options = steps | dict(zip(("detach_sizes", "detach_expansion_size"), detached, strict=True))
        for sample, epsilon in ((small, 0.0), (small, 4.0), (odd, 0.2), (large, 0.2)):
            got = ours(sample, epsilon=epsilon, **options)
            assert_near(got, by_hand(sample, epsilon=epsilon, **options), message=f"epsilon {epsilon} {options}")
    assert len(sparse_calls) == 16


def test_sparse_products_in_many_parts_give_the_same(sparse_calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse, "MAX_TERMS", 50)
    monkeypatch.setattr(sparse, "default_tile_rows", lambda *_: 7)
    for sample in (clusters(20, 4, 8, 0.5), SAMPLES["corners, more than once"], SAMPLES["collapsed"]):
        for options in ({}, {"detach_sizes": False}, {"complement": False}):
            assert_near(ours(sample, **options), by_hand(sample, **options), message=str(options))
    assert len(sparse_calls) == 9


def test_the_way_is_chosen_by_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large batches whose neighborhoods are small are sparse; value and gradient do not tell."""
    calls = []

    def counted(vectors: Tensor, *arguments: Any) -> Tensor:
        calls.append(len(vectors))
        return sparse_loss(vectors, *arguments)

    monkeypatch.setattr(contextual_loss, "sparse_loss", counted)
    learned, collapsed, small = clusters(100, 4, 32, 0.3), clusters(100, 4, 32, 0.0), SAMPLES["16, k = 4"]
    collapsed = collapsed._replace(x=torch.ones(400, 32, dtype=torch.float64))
    few_classes = learned._replace(labels=learned.labels % 3)
    for sample, is_sparse in ((learned, True), (collapsed, False), (few_classes, False), (small, False)):
        calls.clear()
        assert_near(ours(sample), by_hand(sample))
        assert calls == [len(sample.x)] * is_sparse
    with monkeypatch.context() as patched:
        patched.setattr(contextual_loss, "MIN_SPARSE_SAMPLES", 10**9)
        by_dense_matrices = ours(learned)
    assert_near(ours(learned), by_dense_matrices, 1e-12)


@pytest.mark.parametrize("fraction", [0.1, 1.0])
def test_products_of_few_entries(fraction: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: matrices with few nonzero entries, or all, are multiplied entry by entry."""
    monkeypatch.setattr(dense, "WITH_FEW_ENTRIES", ("cpu",))
    monkeypatch.setattr(dense, "MAX_FRACTION", fraction)
    monkeypatch.setattr(dense, "MIN_ROWS", 0)
    for sample in (*SAMPLES.values(), clusters(30, 4, 32, 0.3)):
        assert_near(ours(sample), by_hand(sample))


@pytest.mark.parametrize("variant", SPARSE)
def test_float32_by_sparse_matrices(variant: str, sparse_calls: list[int]) -> None:
    for name in ("16, k = 4", "24, k = 6, learned", "corners", "unequal classes"):
        sample = SAMPLES[name]._replace(x=SAMPLES[name].x.float())
        got = ours(sample, **VARIANTS[variant])
        assert got[0].dtype == got[1].dtype == torch.float32
        for a, b in zip(got, by_hand(sample, **VARIANTS[variant]), strict=True):
            assert (a - b).norm() <= 1e-5 * b.norm() + 1e-6, name
    assert len(sparse_calls) == 4


# Mixed examples -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("k", [None, 4])
def test_virtual_examples_have_neighborhoods_too(variant: str, k: int | None) -> None:
    """The same as with embeddings of the mixtures, whose similarity with themselves is taken as 1."""
    sample = SAMPLES["16, k = 4"]
    seen = Seen()
    SiMix(seen)(sample.x, sample.labels)
    mixture, labels = seen.source.reference_mixture, seen.source.reference_labels
    same = labels[:, None] == labels

    def of_built(x: Tensor) -> Tensor:
        f = x / x.norm(dim=1, keepdim=True)
        mixed = mixture.coefficient[:, None] * f[mixture.first] + (1 - mixture.coefficient)[:, None] * f[mixture.second]
        w = contextual_similarity(mixed @ mixed.T, same, ~same, k or 10, **VARIANTS[variant])
        return ((same.double() - w).square() * ~torch.eye(len(w), dtype=torch.bool)).sum() / len(w) ** 2

    loss = SiMix(ContextualLoss(k, **VARIANTS[variant]))
    got = value_and_gradient(lambda x: loss(x, sample.labels), sample.x)
    assert_near(got, value_and_gradient(of_built, sample.x), 1e-6)
