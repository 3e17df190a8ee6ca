"""Pair losses against slow, obvious references in float64, and against pytorch-metric-learning."""

from __future__ import annotations

import math

import pytest
import torch
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning import miners as pml_miners
from torch import Tensor

from tests.losses.batches import nasty_batches
from vicinal.errors import InputError
from vicinal.losses import MultiSimilarityLoss
from vicinal.mining import MultiSimilarityMiner

BATCHES = nasty_batches()
PAPER = MultiSimilarityLoss()
VARIANTS = {
    "paper": PAPER,
    "no miner": MultiSimilarityLoss(miner=None),
    "other constants": MultiSimilarityLoss(alpha=3, beta=40, base=0.5, miner=MultiSimilarityMiner(0.3)),
    "contributing": MultiSimilarityLoss(reduction="contributing"),
}


def multi_similarity_by_hand(x: Tensor, labels: Tensor, loss: MultiSimilarityLoss) -> Tensor:
    """Eq. (11), (12) and (15) of the paper, pair by pair."""
    x = x / x.norm(dim=1, keepdim=True)
    n = len(x)
    total = x.sum() * 0
    contributing = 0
    for i in range(n):
        s = [x[i] @ x[k] for k in range(n)]
        positives = [k for k in range(n) if k != i and labels[k] == labels[i]]
        negatives = [k for k in range(n) if labels[k] != labels[i]]
        kept_positives, kept_negatives = positives, negatives
        if loss.miner is not None:
            epsilon = loss.miner.epsilon
            hardest_positive = min((s[k].item() for k in positives), default=math.inf)
            hardest_negative = max((s[k].item() for k in negatives), default=-math.inf)
            kept_negatives = [k for k in negatives if s[k].item() > hardest_positive - epsilon]
            kept_positives = [k for k in positives if s[k].item() < hardest_negative + epsilon]
        contributing += bool(kept_positives or kept_negatives)
        total = total + torch.log(1 + sum(torch.exp(-loss.alpha * (s[k] - loss.base)) for k in kept_positives)
                                  + x.new_zeros(())) / loss.alpha  # fmt: skip
        total = total + torch.log(1 + sum(torch.exp(loss.beta * (s[k] - loss.base)) for k in kept_negatives)
                                  + x.new_zeros(())) / loss.beta  # fmt: skip
    return total / (max(contributing, 1) if loss.reduction == "contributing" else n)


def value_and_gradient(loss, x: Tensor, labels: Tensor, *more) -> tuple[Tensor, Tensor]:
    x = x.clone().requires_grad_()
    value = loss(x, labels, *more)
    (gradient,) = torch.autograd.grad(value, x)
    return value.detach(), gradient


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", BATCHES)
def test_is_the_papers_formula(name: str, variant: str) -> None:
    x, labels = BATCHES[name]
    loss = VARIANTS[variant]
    expected = value_and_gradient(lambda x, labels: multi_similarity_by_hand(x, labels, loss), x, labels)
    for got, wanted in zip(value_and_gradient(loss, x, labels), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("tile_rows", [1, 2, 5])
def test_tiles_change_nothing(name: str, variant: str, tile_rows: int) -> None:
    x, labels = BATCHES[name]
    whole = VARIANTS[variant]
    tiled = MultiSimilarityLoss(whole.alpha, whole.beta, whole.base, whole.miner, whole.reduction, tile_rows=tile_rows)
    expected = value_and_gradient(whole, x, labels)
    for got, wanted in zip(value_and_gradient(tiled, x, labels), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("base", [0.5, 1.0])
def test_agrees_with_pytorch_metric_learning(seed: int, base: float) -> None:
    """Same formula and the same mean over all anchors; only the default of `base` differs (0.5 there)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(40, 16, generator=generator)
    labels = torch.randint(0, 8, (40,), generator=generator)
    peer, peer_miner = pml_losses.MultiSimilarityLoss(alpha=2, beta=50, base=base), pml_miners.MultiSimilarityMiner(0.1)
    expected = value_and_gradient(lambda x, labels: peer(x, labels, peer_miner(x, labels)), x, labels)
    for got, wanted in zip(value_and_gradient(MultiSimilarityLoss(base=base), x, labels), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)


def test_gradcheck() -> None:
    x, labels = BATCHES["unequal classes"]
    for tile_rows in (None, 5):
        loss = MultiSimilarityLoss(miner=None, tile_rows=tile_rows)
        assert torch.autograd.gradcheck(lambda x, loss=loss: loss(x, labels), x.clone().requires_grad_())


@pytest.mark.parametrize("tile_rows", [None, 3])
def test_references_with_offset_are_the_batch_within_them(tile_rows: int | None) -> None:
    """Anchors 4 to 9 of a batch, against the whole of it, give their share of the batch's loss."""
    x, labels = BATCHES["unequal classes"]
    loss = MultiSimilarityLoss(tile_rows=tile_rows)
    pieces = [(0, 4), (4, 9), (9, 12)]
    x = x.clone().requires_grad_()
    total = sum(
        loss(x[start:stop], labels[start:stop], x, labels, start) * (stop - start) / len(x) for start, stop in pieces
    )
    expected = value_and_gradient(loss, x.detach(), labels)
    torch.testing.assert_close(total.detach(), expected[0])
    torch.testing.assert_close(torch.autograd.grad(total, x)[0], expected[1])


def test_references_without_offset_are_others_even_when_equal() -> None:
    """An anchor's twin in a memory is a positive: identity is said by the offset and never guessed."""
    x, labels = torch.eye(2, dtype=torch.float64), torch.tensor([0, 1])
    loss = MultiSimilarityLoss(miner=None)
    by_hand = math.log(1 + math.exp(0)) / 2 + math.log(1 + math.exp(-50)) / 50
    assert loss(x, labels, x, labels).item() == pytest.approx(by_hand)
    assert loss(x, labels, x, labels, 0).item() == pytest.approx(math.log(1 + math.exp(-50)) / 50)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e4, 3e38])
def test_finite_for_every_finite_input(dtype: torch.dtype, scale: float) -> None:
    largest = torch.finfo(dtype).max
    for x, labels in BATCHES.values():
        x = (x / x.abs().max() * min(scale, largest)).to(dtype).requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = PAPER(x, labels)
        assert value.dtype == torch.float32
        assert value.isfinite()
        (gradient,) = torch.autograd.grad(value, x)
        if scale >= 1e-3:  # the true gradient grows as 1 / length and leaves float16 for tiny vectors
            assert gradient.isfinite().all()


def test_a_broken_embedding_breaks_the_loss() -> None:
    """A miner's comparisons are false for NaN; the loss must not be that of a batch without pairs."""
    x, labels = BATCHES["unequal classes"]
    for loss in VARIANTS.values():
        for bad in (torch.nan, torch.inf):
            broken = x.clone()
            broken[3, 2] = bad
            assert loss(broken, labels).isnan()
            assert loss(x, labels, broken, labels).isnan()


def test_nothing_to_compare_with_is_a_zero_that_backpropagates() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    for loss in VARIANTS.values():
        nothing = loss(x, torch.arange(3), torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
        nothing.backward()
        assert nothing.item() == 0
        assert loss(x[:0], torch.arange(0)).item() == 0


def test_tiles_refuse_a_second_derivative_rather_than_give_a_wrong_one() -> None:
    x, labels = BATCHES["unequal classes"]
    value = MultiSimilarityLoss(tile_rows=2)(x.clone().requires_grad_(), labels)
    with pytest.raises(RuntimeError, match="no second derivative"):
        value.backward(create_graph=True)


def test_zero_vectors_have_a_finite_gradient() -> None:
    x = torch.zeros(4, 3, requires_grad=True)
    value = PAPER(x, torch.tensor([0, 0, 1, 1]))
    assert torch.autograd.grad(value, x)[0].isfinite().all()


def test_no_pair_selected_is_a_zero_that_backpropagates() -> None:
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]], requires_grad=True)
    for reduction in ("anchors", "contributing"):
        value = MultiSimilarityLoss(reduction=reduction)(x, torch.tensor([0, 0, 1, 1]))
        value.backward()
        assert value.item() == 0
        assert x.grad is not None
        assert not x.grad.any()


def test_order_and_names_of_classes_do_not_matter() -> None:
    x, labels = BATCHES["unequal classes"]
    value, gradient = value_and_gradient(PAPER, x, labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    permuted = value_and_gradient(PAPER, x[order], labels[order])
    torch.testing.assert_close(permuted, (value, gradient[order]))
    renamed = value_and_gradient(PAPER, x, torch.tensor([40, -3, 2**50, 0])[labels])
    torch.testing.assert_close(renamed, (value, gradient), rtol=0, atol=0)


def test_weights_are_those_of_the_paper() -> None:
    """The derivative by a similarity is the weight of Eq. (13) and (14), over the m of the mean."""
    x, labels = BATCHES["unequal classes"]
    loss = MultiSimilarityLoss(alpha=2, beta=5, base=0.5, miner=None)
    x = torch.nn.functional.normalize(x)
    s = (x @ x.T).requires_grad_()
    values = s.detach()
    same = labels[:, None] == labels
    positive = same & ~torch.eye(len(x), dtype=torch.bool)
    from vicinal.similarity import Rows

    (gradient,) = torch.autograd.grad(loss.row_values(Rows(s, positive, ~same)).sum(), s)
    for i, j in [(0, 1), (5, 7), (0, 5), (11, 2)]:
        if same[i, j]:
            others = sum(math.exp(-2 * (values[i, k] - values[i, j])) for k in range(len(x)) if positive[i, k])
            weight = -1 / (math.exp(-2 * (0.5 - values[i, j])) + others)
        else:
            others = sum(math.exp(5 * (values[i, k] - values[i, j])) for k in range(len(x)) if not same[i, k])
            weight = 1 / (math.exp(5 * (0.5 - values[i, j])) + others)
        assert gradient[i, j].item() == pytest.approx(weight, rel=1e-9)


@pytest.mark.slow
def test_compiles_whole() -> None:
    x, labels = BATCHES["unequal classes"]
    compiled = torch.compile(PAPER, fullgraph=True)
    expected = value_and_gradient(PAPER, x.float(), labels)
    torch.testing.assert_close(value_and_gradient(compiled, x.float(), labels), expected, rtol=1e-5, atol=1e-6)


def test_tiles_bound_the_memory() -> None:
    """No tensor of n x n elements is made when tiles are small."""
    x, labels = torch.randn(512, 8, requires_grad=True), torch.arange(512) // 4
    largest = 0
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t), _Largest() as seen:
        MultiSimilarityLoss(tile_rows=16)(x, labels).backward()
        largest = seen.largest
    assert largest <= 16 * 512


class _Largest(torch.utils._python_dispatch.TorchDispatchMode):
    """Remembers the number of elements of the largest tensor that any operation returned."""

    largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, Tensor):
                self.largest = max(self.largest, tensor.numel())
        return result


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": 0}, "alpha = 0 must be positive"),
        ({"beta": -1}, "beta = -1 must be positive"),
        ({"reduction": "sum"}, "reduction = 'sum'"),
    ],
)
def test_impossible_arguments(arguments: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        MultiSimilarityLoss(**arguments)
