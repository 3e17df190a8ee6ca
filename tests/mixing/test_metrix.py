"""Metrix beyond its formula, which `tests/losses/cases.py` compares: centers, coefficients, sizes, processes."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from scipy.stats import beta, kstest
from torch import Tensor

from tests.conftest import free_port
from tests.losses import center_references
from tests.losses.allocations import largest_allocation
from tests.losses.batches import Batch, nasty_batches, realistic_batch
from tests.losses.gradients import value_and_gradients
from tests.losses.mixed_references import Mixed, coefficient
from vicinal.losses import (
    BinomialDevianceLoss,
    ContrastiveLoss,
    MarginLoss,
    MultiSimilarityLoss,
    NCALoss,
    ProxyAnchorLoss,
    RowLoss,
    TripletLoss,
)
from vicinal.memory import CrossBatchMemory
from vicinal.mining import DistanceWeightedMiner
from vicinal.mixing import Metrix, SiMix, metrix
from vicinal.similarity.pair_source import PairSource
from vicinal.similarity.rows import Rows
from vicinal.training import Recipe
from vicinal.utils import distributed
from vicinal.utils.errors import InputError
from vicinal.weighting import pair_weights

BATCHES = nasty_batches()
NUM_CLASSES = 14
OF_CLASSES = {
    name: batch._replace(labels=batch.labels.unique(return_inverse=True)[1] * 3 % NUM_CLASSES)
    for name, batch in BATCHES.items()
    if batch.references is None and name != "many classes"
}


class Seen(RowLoss):
    """Remembers the rows that it is shown."""

    supports_weights = True

    def row_values(self, rows: Rows) -> Tensor:
        self.rows = rows
        return 0 * rows.negatives.clamp_min(-2).sum(dim=1)


def coefficients(loss: Metrix, batch: Batch = realistic_batch()) -> Tensor:  # noqa: B008 - not changed
    """The coefficients of the next call, without those of padding."""
    loss(*batch)
    rows = loss.loss.rows
    return rows.positive_weights[rows.positive_weights > 0]


# Centers as anchors ---------------------------------------------------------------------------------------------------


def proxy_anchor(x: Tensor, labels: Tensor, centers: Tensor, pairs: str) -> Tensor:
    """Proxy Anchor, with the mixed examples of each center of a class of the batch."""
    pulled, pushed = [], []
    unit, alpha, margin = center_references.unit, 32.0, 0.1
    for place, p in enumerate(sorted(set(labels.tolist()))):
        cosines = unit(x) @ unit(centers[p])
        positives = cosines[labels == p] if pairs == "positive-negative" else torch.ones(1)
        mixed: Mixed = []
        for k, positive in enumerate(positives):
            for j in (labels != p).nonzero().flatten().tolist():
                y = coefficient(place, k, j)
                mixed.append((y * positive + (1 - y) * cosines[j], y))
        pulled.append((1 + sum(y * (-alpha * (s - margin)).exp() for s, y in mixed) + 0 * cosines[0]).log())
        pushed.append((1 + sum((1 - y) * (alpha * (s + margin)).exp() for s, y in mixed) + 0 * cosines[0]).log())
    clean = center_references.proxy_anchor(x, labels, centers)
    return clean + 0.4 * (sum(pulled) / len(pulled) + sum(pushed) / len(centers))


@pytest.mark.parametrize("pairs", ["positive-negative", "anchor-negative"])
def test_proxy_anchor_is_the_formula(pairs: str) -> None:
    for name, batch in OF_CLASSES.items():
        inner = ProxyAnchorLoss(NUM_CLASSES, batch.embeddings.shape[1]).double()
        for tile_rows in (None, 2):
            loss = Metrix(inner, pairs=pairs, tile_rows=tile_rows)
            got = value_and_gradients(loss, batch, [inner.centers])
            expected = value_and_gradients(
                lambda x, labels, inner=inner: proxy_anchor(x, labels, inner.centers, pairs), batch, [inner.centers]
            )
            torch.testing.assert_close(
                got, expected, rtol=1e-9, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}"
            )


def test_own_references_are_refused_with_centers() -> None:
    x, labels = torch.eye(4), torch.tensor([0, 0, 1, 1])
    with pytest.raises(InputError, match=r"^ProxyAnchorLoss: the references are the class centers"):
        Metrix(ProxyAnchorLoss(2, 4))(x, labels, x, labels)
    with pytest.raises(InputError, match=r"^CrossBatchMemory: ProxyAnchorLoss cannot compare with a memory"):
        CrossBatchMemory(Metrix(ProxyAnchorLoss(2, 4)), 8)
    with pytest.raises(InputError, match=r"not Metrix$"):
        SiMix(Metrix(ProxyAnchorLoss(2, 4)))


# Coefficients ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0, 20.0])
def test_coefficients_have_a_beta_distribution(alpha: float) -> None:
    loss = Metrix(Seen(), alpha=alpha)
    drawn = coefficients(loss)
    assert drawn.shape == (64 * 3 * 60,)
    assert kstest(drawn.numpy(), beta(alpha, alpha).cdf).pvalue > 0.01


def test_coefficients_of_an_anchor_are_pairwise_uncorrelated() -> None:
    loss, batch = Metrix(Seen()), realistic_batch()
    calls = torch.stack([coefficients(loss).view(64, 3, 60)[0, :, :8].flatten() for _ in range(400)])
    correlation = torch.corrcoef(calls.T).fill_diagonal_(0)
    assert correlation.abs().max() < 4.5 / len(calls) ** 0.5
    assert len({row[0].item() for row in calls}) > 300
    assert batch.labels.bincount().eq(4).all()


def test_draws_depend_on_seed_and_call() -> None:
    first, again, other = Metrix(Seen()), Metrix(Seen()), Metrix(Seen(), seed=1)
    drawn = coefficients(first)
    assert torch.equal(coefficients(again), drawn)
    assert (coefficients(other) == drawn).float().mean() < 0.01
    assert (coefficients(first) == drawn).float().mean() < 0.01


def test_a_restored_loss_goes_on_as_if_never_interrupted() -> None:
    batch = realistic_batch()
    loss, restored = (Metrix(ContrastiveLoss(miner=DistanceWeightedMiner())) for _ in range(2))
    for _ in range(3):
        loss(*batch)
    assert loss.state_dict()["calls"] == 3
    restored.load_state_dict(loss.state_dict())
    assert torch.equal(restored(*batch), loss(*batch))


@pytest.mark.parametrize("pairs", ["positive-negative", "anchor-negative", "both"])
def test_with_one_coefficient_the_order_does_not_matter(pairs: str) -> None:
    for name in ("unequal classes", "many classes", "singletons", "opposites"):
        x, labels = BATCHES[name][:2]
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
        for inner in (MultiSimilarityLoss(), ContrastiveLoss(), ProxyAnchorLoss(12, x.shape[1]).double()):
            loss = Metrix(inner, pairs=pairs)
            loss.quantiles.fill_(0.3)
            labels = labels.unique(return_inverse=True)[1]
            value, gradient, *others = value_and_gradients(loss, Batch(x, labels), list(loss.parameters()))
            permuted = value_and_gradients(loss, Batch(x[order], labels[order]), list(loss.parameters()))
            torch.testing.assert_close(permuted, [value, gradient[order], *others], rtol=1e-10, atol=1e-13)


def test_labels_of_one_are_those_of_the_clean_loss() -> None:
    """With lambda = 1 every mixed example is its positive, once per negative; with 0 it is its negative."""
    batch, inner = BATCHES["unequal classes"], ContrastiveLoss(None, reduction="pairs")
    clean = inner(*batch)
    positives_only, negatives_only = Metrix(inner, 1.0), Metrix(inner, 1.0)
    positives_only.quantiles.fill_(1.0)
    negatives_only.quantiles.fill_(0.0)
    rows = [mixed.parts(PairSource.from_batch(*batch)) for mixed in (positives_only, negatives_only)]
    similarity = torch.nn.functional.normalize(batch.embeddings)
    similarity = similarity @ similarity.T
    same = batch.labels[:, None] == batch.labels
    weight = (~same).sum(1, keepdim=True) * (same & ~torch.eye(12, dtype=torch.bool))
    torch.testing.assert_close(rows[0]["ContrastiveLoss (mixed)"], -(similarity * weight).sum() / weight.sum())
    weight = (same.sum(1, keepdim=True) - 1) * ~same
    hinges = (similarity - 0.6).relu()
    torch.testing.assert_close(rows[1]["ContrastiveLoss (mixed)"], (hinges * weight).sum() / weight.sum())
    torch.testing.assert_close(rows[0]["ContrastiveLoss"], clean)


# Number types and sizes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_finite_for_every_finite_input(dtype: torch.dtype) -> None:
    autocast = torch.float16 if dtype == torch.float16 else torch.bfloat16
    for name, batch in BATCHES.items():
        for inner in (MultiSimilarityLoss(), ContrastiveLoss(), NCALoss(), BinomialDevianceLoss()):
            for scale in (1e-30, 1.0, 3e38):
                length = min(scale, torch.finfo(dtype).max)
                x = (batch.embeddings / batch.embeddings.abs().max() * length).to(dtype).requires_grad_()
                references = None if batch.references is None else batch.references.to(dtype)
                with torch.autocast("cpu", dtype=autocast):
                    value = Metrix(inner, pairs="both", alpha=0.1)(*batch._replace(embeddings=x, references=references))
                (gradient,) = torch.autograd.grad(value, x)
                assert value.dtype == torch.float32
                assert gradient.dtype == dtype
                assert value.isfinite(), (name, scale)
                assert gradient.isfinite().all(), (name, scale)


def test_memory_is_that_of_a_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrix, "tile_elements", lambda device: 2**12)
    n = 128
    x, labels = torch.randn(n, 8), torch.arange(n) // 4
    for tile_rows, mixed in ((4, 4 * 3 * n), (None, 2**12)):
        loss = Metrix(MultiSimilarityLoss(miner=None), tile_rows=tile_rows)
        largest = largest_allocation(lambda loss=loss: loss(x.clone().requires_grad_(), labels).backward())
        assert largest <= 8 * mixed  # an index has 8 bytes


def test_nothing_to_mix_is_a_zero_that_backpropagates() -> None:
    x, none = torch.randn(4, 3), torch.zeros(0, dtype=torch.int64)
    losses = MultiSimilarityLoss(), NCALoss(), ContrastiveLoss()
    one_class, centers = torch.zeros(4, dtype=torch.int64), ProxyAnchorLoss(4, 3)
    for labels, inners in ((torch.arange(4), losses), (one_class, (*losses, centers))):
        for inner in inners:
            leaf = x.clone().requires_grad_()
            mixed = list(Metrix(inner).parts(PairSource.from_batch(leaf, labels)).values())[1]
            assert mixed == 0
            (gradient,) = torch.autograd.grad(mixed, leaf)
            assert not gradient.any()
    for batch in (Batch(x[:0], none), Batch(x, torch.arange(4), x[:0], none)):
        value, gradient, *_ = value_and_gradients(Metrix(ContrastiveLoss()), batch)
        assert value == 0
        assert not gradient.any()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_broken_embedding_breaks_the_loss(bad: float) -> None:
    x, labels = BATCHES["unequal classes"][:2]
    broken = x.clone()
    broken[3, 2] = bad
    for inner in (MultiSimilarityLoss(), ContrastiveLoss(), ProxyAnchorLoss(4, 5).double()):
        assert Metrix(inner)(broken, labels).isnan()


@pytest.mark.slow
def test_works_under_compile() -> None:
    torch.compiler.reset()
    batch = BATCHES["unequal classes"].to(torch.float32)
    compiled, plain = torch.compile(Metrix(MultiSimilarityLoss()), backend="aot_eager"), Metrix(MultiSimilarityLoss())
    for _ in range(2):
        torch.testing.assert_close(value_and_gradients(compiled, batch), value_and_gradients(plain, batch))


# A loss like others ---------------------------------------------------------------------------------------------------


def test_parts_and_values_of_anchors_add_up() -> None:
    source = PairSource.from_batch(*realistic_batch())
    loss = Metrix(MultiSimilarityLoss(), weight=3.0, tile_rows=5)
    parts = loss.parts(source)
    assert list(parts) == ["MultiSimilarityLoss", "MultiSimilarityLoss (mixed)"]
    torch.testing.assert_close(parts["MultiSimilarityLoss"], MultiSimilarityLoss()(*realistic_batch()))
    unweighted = Metrix(MultiSimilarityLoss(), weight=1.0).parts(source)
    torch.testing.assert_close(parts["MultiSimilarityLoss (mixed)"], 3 * unweighted["MultiSimilarityLoss (mixed)"])
    loss.quantiles.fill_(0.4)
    torch.testing.assert_close(loss.anchor_values(source).mean(), sum(loss.parts(source).values()))


def test_with_a_memory_simix_and_pair_weights() -> None:
    batch = realistic_batch().to(torch.float32)
    memory = CrossBatchMemory(Metrix(ContrastiveLoss()), 100)
    for _ in range(2):
        assert memory(*batch).isfinite()
    assert SiMix(Metrix(ContrastiveLoss()))(*batch) > ContrastiveLoss()(*batch) / 2
    weights = pair_weights(Metrix(BinomialDevianceLoss()), PairSource.from_batch(*batch))
    assert (weights > pair_weights(BinomialDevianceLoss(), PairSource.from_batch(*batch)) - 1e-9).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Metrix(TripletLoss()), "loss must be an additive loss such as .*, not TripletLoss"),
        (lambda: Metrix(ContrastiveLoss() + NCALoss()), "not WeightedSum"),
        (lambda: Metrix(Metrix(NCALoss())), "not Metrix"),
        (lambda: Metrix(MarginLoss()), "not MarginLoss"),
        (lambda: Metrix(torch.nn.MSELoss()), "not MSELoss"),
        (lambda: Metrix(NCALoss(), weight=-1.0), "weight = -1.0 must not be negative"),
        (lambda: Metrix(NCALoss(), alpha=0.0), "alpha = 0.0 must be positive"),
        (lambda: Metrix(NCALoss(), pairs="negative"), "pairs = 'negative' must be one of positive-negative, "),
        (lambda: Metrix(NCALoss(), seed=-1), "seed = -1 must be a whole number from 0 up"),
    ],
)
def test_mistakes(make, message: str) -> None:
    with pytest.raises(InputError, match=f"^Metrix: .*{message}") as error:
        make()
    assert "\n" not in str(error.value)


def test_a_recipe_names_it() -> None:
    loss = Recipe.load(overrides=["--loss=Metrix", "--loss.loss.class_path=ContrastiveLoss", "--loss.weight=0.2"])
    created = loss.create_loss()
    assert isinstance(created, Metrix)
    assert isinstance(created.loss, ContrastiveLoss)
    assert created.weight == 0.2


# Processes ------------------------------------------------------------------------------------------------------------

PROCESS_LOSSES = {
    "violating": lambda: Metrix(ContrastiveLoss()),
    "anchors": lambda: Metrix(MultiSimilarityLoss(), tile_rows=3),
    "sum": lambda: Metrix(NCALoss(), pairs="both"),
    "contributing": lambda: Metrix(BinomialDevianceLoss(reduction="contributing"), pairs="anchor-negative"),
    "drawn": lambda: Metrix(ContrastiveLoss(miner=DistanceWeightedMiner())),
    "memory": lambda: CrossBatchMemory(Metrix(ContrastiveLoss(reduction="anchors")), 30),
    "centers": lambda: Metrix(ProxyAnchorLoss(4, 4)),
}
LABELS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 1, 3, 3, 0])


def steps(make, mine: slice) -> list[Tensor]:
    torch.manual_seed(0)
    loss, seen = make().double(), []
    for step in range(2):
        x = torch.randn(12, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        leaf = x[mine].clone().requires_grad_()
        value = sum(loss.parts(PairSource.from_distributed_batch(leaf, LABELS[mine])).values())
        seen += [distributed.all_reduce_mean(value.detach()), torch.autograd.grad(value, leaf)[0]]
    return seen


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path) -> None:
    port = free_port()
    mp.spawn(_process, (port, tmp_path), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    for name, make in PROCESS_LOSSES.items():
        expected = steps(make, slice(None))
        together = [a if a.ndim == 0 else torch.cat([a, b]) / 2 for a, b in zip(first[name], second[name], strict=True)]
        torch.testing.assert_close(
            together, expected, rtol=1e-9, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}"
        )


def _process(rank: int, port: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    mine = slice(rank * 6, rank * 6 + 6)
    torch.save({name: steps(make, mine) for name, make in PROCESS_LOSSES.items()}, folder / f"{rank}.pt")
    distributed.barrier()
    dist.destroy_process_group()


def test_a_copy_is_independent() -> None:
    loss = Metrix(ContrastiveLoss())
    other = copy.deepcopy(loss)
    loss.quantiles.fill_(0.0)
    assert other.quantiles.any()
    assert Metrix(ContrastiveLoss()).quantiles.any()
