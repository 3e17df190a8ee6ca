"""SiMix against the same losses of mixed embeddings that are really built, without normalizing them."""

import copy
from typing import Any

import pytest
import torch
from scipy.stats import kstest
from torch import Tensor

from tests.losses import references
from tests.losses.allocations import largest_allocation
from tests.losses.batches import LOOSE_DISTANCES, Batch, nasty_batches, realistic_batch
from tests.losses.cases import DEFAULTS
from tests.losses.gradients import assert_near, value_and_gradients
from tests.refusals import refused_call
from vicinal.losses import (
    HistogramLoss,
    Loss,
    MarginLoss,
    MultiSimilarityLoss,
    NCALoss,
    NTXentLoss,
    PairLoss,
    RecallAtKLoss,
    RoadmapLoss,
    SmoothAPLoss,
    TripletLoss,
)
from vicinal.memory import CrossBatchMemory
from vicinal.mixing import SiMix
from vicinal.similarity.mixed_pair_source import MixedPairSource, Mixture
from vicinal.similarity.pair_source import PairSource

BATCHES = nasty_batches()
SUMS: dict[str, Loss] = {
    "ROADMAP": RoadmapLoss(),
    "sum": 0.5 * NCALoss() + 2 * RecallAtKLoss(k=2) + 0.1 * HistogramLoss(bins=20),
}


class Seen(PairLoss):
    """Remembers the source that it is called with."""

    source: MixedPairSource

    def value(self, source: PairSource) -> Tensor:
        self.source = source
        return 0 * source.anchors.sum()


def mixtures(batch: Batch, call: int = 1, **arguments: Any) -> MixedPairSource:
    """The source that SiMix gives its loss at a call."""
    loss = SiMix(Seen(), **arguments)
    for _ in range(call):
        loss(*batch)
    return loss.loss.source


def built(x: Tensor, labels: Tensor, mixture: Mixture) -> tuple[Tensor, Tensor]:
    """Eq. (8), example by example."""
    unit = [row / row.norm().clamp_min(1e-3) for row in x]
    parts = list(zip(mixture.first.tolist(), mixture.second.tolist(), mixture.coefficient.tolist(), strict=True))
    return torch.stack([a * unit[i] + (1 - a) * unit[j] for i, j, a in parts]), labels[mixture.first]


def built_batch(batch: Batch, **arguments: Any) -> Batch:
    """All examples of a batch, mixed ones too; its embeddings are not to be normalized."""
    source = mixtures(batch, **arguments)
    anchors, labels = built(batch.embeddings, batch.labels, source.anchor_mixture)
    if batch.references is None:
        return Batch(anchors, labels)
    columns, reference_labels = built(batch.references, batch.reference_labels, source.reference_mixture)
    return Batch(anchors, labels, columns, reference_labels, source.offset)


def of_built(loss: Loss, **arguments: Any):
    """The loss of built embeddings, as a function of those they are made of."""

    def value(*batch: Any) -> Tensor:
        mixed = built_batch(Batch(*batch), **arguments)
        columns = mixed.embeddings if mixed.references is None else mixed.references
        labels = mixed.labels if mixed.reference_labels is None else mixed.reference_labels
        offset = 0 if mixed.references is None else mixed.offset
        return sum(loss.parts(PairSource(mixed.embeddings, columns, mixed.labels, labels, offset)).values())

    return value


def learned(loss: Loss) -> list[Tensor]:
    return list(loss.parameters())


@pytest.mark.parametrize("case", [*DEFAULTS, *SUMS])
def test_equal_to_the_loss_of_built_embeddings(case: str) -> None:
    """The batch with itself, references around it and beside it; classes of all sizes, in any order.

    Each loss has a third of the batches, beginning with another: how examples are mixed does not depend on the loss.
    """
    for name in [*BATCHES][[*DEFAULTS, *SUMS].index(case) % 3 :: 3]:
        batch = BATCHES[name]
        loss = DEFAULTS[case].loss().double() if case in DEFAULTS else copy.deepcopy(SUMS[case])
        batch = DEFAULTS[case].suited(batch) if case in DEFAULTS else batch
        plain = copy.deepcopy(loss)
        expected = value_and_gradients(of_built(plain), batch, learned(plain))
        got = value_and_gradients(SiMix(loss), batch, learned(loss))
        assert all(tensor.isfinite().all() for tensor in got)
        atol = 1e-6 if isinstance(loss, MarginLoss) and name in LOOSE_DISTANCES else 1e-12
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=atol, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("case", DEFAULTS)
def test_equal_to_the_formula_of_built_embeddings(case: str) -> None:
    """The papers' formulas of similarities above and below those of vectors of length 1, pair by pair."""
    for name in ("singletons", "references beside the batch", "references around the batch"):
        batch, loss = DEFAULTS[case].suited(BATCHES[name]), DEFAULTS[case].loss().double()

        def formula(*batch: Any, loss=loss) -> Tensor:
            anchors = references.anchors_of(built_batch(Batch(*batch)), normalize=False)
            return DEFAULTS[case].by_hand(anchors, **dict(loss.named_parameters()))

        expected = value_and_gradients(formula, batch, learned(loss))
        got = value_and_gradients(SiMix(loss), batch, learned(loss))
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("tile_rows", "virtual_per_class"), [(3, 2), pytest.param(5, None, marks=pytest.mark.slow)])
def test_in_tiles_equal_to_the_whole(tile_rows: int, virtual_per_class: int | None) -> None:
    for kind in (RecallAtKLoss, SmoothAPLoss, NTXentLoss, HistogramLoss, TripletLoss):
        for name in ("unequal classes", "many classes", "references around the batch", "references beside the batch"):
            whole = value_and_gradients(SiMix(kind(), virtual_per_class), BATCHES[name])
            tiled = value_and_gradients(SiMix(kind(tile_rows=tile_rows), virtual_per_class), BATCHES[name])
            torch.testing.assert_close(tiled, whole, rtol=1e-11, atol=1e-13)


def test_equal_to_built_embeddings_at_a_later_call_and_with_few_a_class() -> None:
    for name in ("unequal classes", "references around the batch"):
        for call in (1, 2, 5):
            loss = SiMix(SmoothAPLoss(), virtual_per_class=3, seed=4)
            loss.calls.fill_(call - 1)
            expected = value_and_gradients(
                of_built(SmoothAPLoss(), call=call, virtual_per_class=3, seed=4), BATCHES[name]
            )
            torch.testing.assert_close(value_and_gradients(loss, BATCHES[name]), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("case", ["recall@k", "multi-similarity", "histogram", "margin"])
def test_in_a_memory(case: str) -> None:
    """Of the batch and of the memory, and of one of each; those of two of the batch are anchors, and no others."""
    generator = torch.Generator().manual_seed(0)
    inner = DEFAULTS[case].loss().double()
    loss = CrossBatchMemory(SiMix(copy.deepcopy(inner)), 14, warmup=1)
    past, known = torch.zeros(0, 5, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
    for call in range(1, 5):
        x = torch.randn(8, 5, generator=generator, dtype=torch.float64)
        labels = torch.randint(0, 4, (8,), generator=generator)
        beside = torch.cat([known, labels])

        def in_references(x: Tensor, labels: Tensor, past=past, beside=beside, call=call) -> Tensor:
            of = of_built(inner, call=call)
            return of(x, labels) if call == 1 else of(x, labels, torch.cat([past, x]), beside, len(past))

        expected = value_and_gradients(in_references, Batch(x, labels), learned(inner))
        got = value_and_gradients(loss, Batch(x, labels), learned(loss))
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)
        past, known = torch.cat([past, x])[-14:], beside[-14:]
        assert len(loss.embeddings) == len(past)  # nothing virtual is stored


def pairs_of(mixture: Mixture) -> list[tuple[int, int]]:
    return list(zip(mixture.first.tolist(), mixture.second.tolist(), strict=True))


def all_pairs(labels: Tensor) -> set[tuple[int, int]]:
    places = range(len(labels))
    return {(i, j) for i in places for j in places if i <= j and labels[i] == labels[j]}


@pytest.mark.parametrize("name", BATCHES)
def test_every_example_and_every_pair_once(name: str) -> None:
    batch = BATCHES[name]
    source = mixtures(batch)
    sides = [(source.anchor_mixture, batch.labels), (source.reference_mixture, batch.reference_labels)]
    sides = sides if batch.references is not None else sides[:1]
    for mixture, labels in sides:
        pairs = pairs_of(mixture)
        assert len(set(pairs)) == len(pairs)
        assert set(pairs) == all_pairs(labels)
        for (i, j), fraction in zip(pairs, mixture.coefficient.tolist(), strict=True):
            assert fraction == 1 if i == j else 0 <= fraction < 1
    assert len(source) == len(source.labels) == len(source.anchor_mixture)
    assert source.num_references == len(source.reference_labels)


def test_an_anchor_is_the_reference_that_the_offset_says() -> None:
    """The same mixture of the same embeddings, in both roles."""
    batch = BATCHES["references around the batch"]
    mixed = built_batch(batch)
    assert len(mixed.embeddings) < len(mixed.references)
    own = mixed.references[mixed.offset : mixed.offset + len(mixed.embeddings)]
    torch.testing.assert_close(mixed.embeddings, own, rtol=0, atol=0)
    assert torch.equal(mixed.labels, mixed.reference_labels[mixed.offset : mixed.offset + len(mixed.labels)])


def test_sides_apart_are_mixed_apart() -> None:
    """No anchor is a reference, not even where the same embeddings stand on both sides."""
    x, labels = BATCHES["unequal classes"][:2]
    source = mixtures(Batch(x, labels, x, labels))
    assert source.offset is None
    assert pairs_of(source.anchor_mixture) == pairs_of(source.reference_mixture)
    virtual = source.anchor_mixture.first != source.anchor_mixture.second
    assert virtual.sum() == 10 + 3 + 1 + 1
    assert not (source.anchor_mixture.coefficient == source.reference_mixture.coefficient)[virtual].any()


@pytest.mark.parametrize("virtual_per_class", [1, 3, 10, 50])
def test_so_many_of_a_class(virtual_per_class: int) -> None:
    labels = torch.tensor([3, 0, 1, 0, 0, 7, 1, 0, 3, 1, 0])  # five, three, two and one of a class
    batch = Batch(torch.randn(11, 4, generator=torch.Generator().manual_seed(0)), labels)
    chosen = set()
    for call in (1, 2, 3, 20):
        source = mixtures(batch, call, virtual_per_class=virtual_per_class)
        pairs = pairs_of(source.anchor_mixture)
        assert len(set(pairs)) == len(pairs)
        assert set(pairs) <= all_pairs(labels)
        counts = source.labels.bincount()
        expected = {
            label: n + min(virtual_per_class, n * (n - 1) // 2) for label, n in ((0, 5), (1, 3), (3, 2), (7, 1))
        }
        assert {label: int(counts[label]) for label in expected} == expected
        chosen.add(frozenset(pairs))
    assert (len(chosen) > 1) == (virtual_per_class < 10)  # which ones changes, as long as there is a choice


@pytest.mark.slow
def test_every_pair_is_chosen_equally_often() -> None:
    batch = Batch(torch.randn(5, 3), torch.zeros(5, dtype=torch.int64))
    loss, counts = SiMix(Seen(), virtual_per_class=3), torch.zeros(5, 5)
    for _ in range(2000):
        loss(*batch)
        mixture = loss.loss.source.anchor_mixture
        counts[mixture.first, mixture.second] += 1
    virtual = counts[counts.triu(1) > 0]
    assert virtual.sum() == 6000
    assert (virtual - 600).abs().max() < 4 * (2000 * 0.3 * 0.7) ** 0.5


@pytest.mark.parametrize("classes", [pytest.param(2, marks=pytest.mark.slow), 1])
def test_few_of_large_classes_need_little_memory(classes: int) -> None:
    """Neither all pairs of a class are listed, nor all similarities of it held."""
    n = 4096
    x, labels = torch.randn(n, 8, requires_grad=True), torch.arange(n) % classes
    loss = SiMix(MultiSimilarityLoss(miner=None, tile_rows=64), virtual_per_class=6)
    assert largest_allocation(lambda: loss(x, labels).backward()) <= 2 * 64 * (n + 12) * 4


def fractions(calls: int, **arguments: Any) -> Tensor:
    """Of the virtual examples of some calls, [calls, pairs]."""
    loss, batch, seen = SiMix(Seen(), **arguments), realistic_batch(), []
    for _ in range(calls):
        loss(*batch)
        mixture = loss.loss.source.anchor_mixture
        seen.append(mixture.coefficient[mixture.first != mixture.second])
    return torch.stack(seen)


def test_fractions_are_uniform_and_independent() -> None:
    seen = fractions(200)
    assert seen.shape == (200, 96)
    assert kstest(seen.flatten().numpy(), "uniform").pvalue > 0.01
    assert min(kstest(of_pair.numpy(), "uniform").pvalue for of_pair in seen.T) > 1e-4
    for view in (seen, seen.T):  # of pairs over calls, and of calls over pairs
        correlation = torch.corrcoef(view).fill_diagonal_(0)
        assert correlation.abs().max() < 5.5 / view.shape[1] ** 0.5


def test_every_call_and_every_seed_draws_anew_and_the_same_again() -> None:
    seen = fractions(5)
    assert len({tuple(row.tolist()) for row in seen}) == 5
    assert torch.equal(fractions(5), seen)
    assert not (fractions(5, seed=1) == seen).any()
    values = [SiMix(SmoothAPLoss(), seed=seed)(*realistic_batch()).item() for seed in (0, 0, 1, 2**40)]
    assert values[0] == values[1]
    assert len(set(values)) == 3


def test_a_restored_loss_goes_on_as_if_never_interrupted() -> None:
    batch = realistic_batch()
    loss, restored = (SiMix(MarginLoss().double(), virtual_per_class=3) for _ in range(2))
    for _ in range(3):
        loss(*batch)
    assert loss.state_dict()["calls"] == 3
    restored.load_state_dict(loss.state_dict(), strict=True)
    torch.testing.assert_close(restored(*batch), loss(*batch), rtol=0, atol=0)
    torch.testing.assert_close(copy.deepcopy(loss)(*batch), loss(*batch), rtol=0, atol=0)


SLOW = [case for case in DEFAULTS if case != "smooth AP"]


@pytest.mark.parametrize("case", ["smooth AP", *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW)])
def test_the_mixed_matrix_is_never_held(case: str) -> None:
    tile_rows, n = 8, 240
    mixed = n * 5 // 2
    x, labels = torch.randn(n, 8, generator=torch.Generator().manual_seed(0)), torch.arange(n) // 4
    if "num_classes" in DEFAULTS[case].arguments:
        labels, mixed = labels % 12, n + 12 * 20 * 19 // 2
    loss = SiMix(DEFAULTS[case].loss(tile_rows=tile_rows))
    assert len(mixtures(Batch(x, labels))) == mixed
    largest = largest_allocation(lambda: loss(x.clone().requires_grad_(), labels).backward())
    assert largest <= 4 * max(2 * tile_rows * mixed, 8 * mixed)  # two numbers a pair, or some an example
    assert 4 * mixed**2 > 10 * largest


@pytest.mark.parametrize("case", [*DEFAULTS, *SUMS])
def test_float32_agrees_with_float64(case: str) -> None:
    batch = realistic_batch()
    if case in DEFAULTS and "num_classes" in DEFAULTS[case].arguments:
        batch = batch._replace(labels=batch.labels % 12)
    losses = [copy.deepcopy(SUMS[case]) if case in SUMS else DEFAULTS[case].loss() for _ in range(2)]
    single = value_and_gradients(SiMix(losses[0]), batch.to(torch.float32), learned(losses[0]))
    assert all(tensor.dtype == torch.float32 for tensor in single)
    double = value_and_gradients(SiMix(losses[1].double()), batch, learned(losses[1]))
    assert_near(single, double, 2e-5)


def test_works_under_compile() -> None:
    """How many examples there are depends on the labels, so the graph is broken there."""
    torch.compiler.reset()
    batch = BATCHES["unequal classes"].to(torch.float32)
    for inner in (RecallAtKLoss, MarginLoss):
        compiled, plain = torch.compile(SiMix(inner()), backend="aot_eager"), SiMix(inner())
        for _ in range(2):
            torch.testing.assert_close(value_and_gradients(compiled, batch), value_and_gradients(plain, batch))


MASK = torch.eye(4, dtype=torch.bool)
X, LABELS = torch.eye(4), torch.tensor([0, 0, 1, 1])


def test_mistakes() -> None:
    for make, message in (
        (lambda: SiMix(CrossBatchMemory(NCALoss(), 10)), "or a sum of such losses, not CrossBatchMemory"),
        (lambda: SiMix(NCALoss() + CrossBatchMemory(NCALoss(), 10)), "not CrossBatchMemory"),
        (lambda: SiMix(SiMix(NCALoss())), "not SiMix"),
        (lambda: SiMix(torch.nn.MSELoss()), "not MSELoss"),
        (lambda: SiMix(NCALoss())(X, positive=MASK), "give labels, not masks or a relation"),
        (lambda: SiMix(NCALoss())(X, LABELS, relation=lambda a, b: a[:, None] == b), "give labels, not masks"),
        (
            lambda: SiMix(NCALoss())(torch.ones(1500, 2), torch.zeros(1500, dtype=torch.int64)),
            "1500 examples and 1124250 mixtures are more than 1048576; give a smaller number of mixtures per class",
        ),
        (lambda: SiMix(NCALoss())(X, LABELS[:3]), r"labels must be int \[4\]"),
    ):
        refused_call(message if message.startswith("labels") else f"^SiMix: .*{message}", make)
