"""Guarantees of every loss: number types, broken and empty input, gradients, random state."""

from itertools import cycle, islice, product

import pytest
import torch
from torch import Tensor

from tests.losses import cases, center_cases
from tests.losses.batches import Batch
from tests.losses.every_loss import BATCHES, DIM, EVERY_LOSS, PATHS, batches_of, loss_for
from tests.losses.gradients import value_and_gradients
from tests.refusals import refused_call
from vicinal.losses import ContrastiveLoss, CrossEntropyLoss, Loss, NormSoftmaxLoss
from vicinal.similarity import PairSource

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
HALVES = DTYPES[1:]
BATCH = BATCHES["unequal classes"]
CLOSE = {"rtol": 1e-10, "atol": 1e-13}
STEEP = "contextual", "regularizer", "NormSoftmax, sharp"
EACH = pytest.mark.parametrize("name", PATHS)


def values(name: str, batch: Batch = BATCH, loss: Loss | None = None) -> list[Tensor]:
    """Value and gradients in the number type of the batch."""
    loss = (loss or loss_for(name, batch)).to(batch.embeddings.dtype)
    return value_and_gradients(loss, batch, list(loss.parameters()))


# Number types ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_turn", [pytest.param(False, marks=pytest.mark.slow), True])
@EACH
def test_finite_for_every_finite_input(name: str, in_turn: bool) -> None:
    """Every batch at every scale in every type.

    Quickly at scale 1 and at an extreme one, each in the next type, of which each loss begins with another; losses that
    do not normalize the embeddings also at the largest scale.
    """
    first = list(PATHS).index(name)
    types = islice(cycle(DTYPES), first, None)
    extremes = islice(cycle(product((0.0, 1e-30, 3e38), DTYPES)), first + 1, None)
    for key, batch in batches_of(name).items():
        pairs = [*product((0.0, 1e-30, 1e-3, 1.0, 1e4, 3e38), DTYPES)]
        if in_turn:
            pairs = [(1.0, next(types)), next(extremes), (3e38, DTYPES[first % 3])]
            pairs = pairs if loss_for(name, batch).uses_norms else pairs[:2]
        for scale, dtype in pairs:
            length = min(scale, torch.finfo(dtype).max)
            x = (batch.embeddings / batch.embeddings.abs().max() * length).to(dtype).requires_grad_()
            references = None if batch.references is None else batch.references.to(dtype)
            loss, message = loss_for(name, batch), f"{key} x {scale}, {dtype}"
            with torch.autocast("cpu", dtype=torch.float16 if dtype == torch.float16 else torch.bfloat16):
                value = loss(*batch._replace(embeddings=x, references=references))
            value.backward()
            assert value.dtype == torch.float32
            assert value.isfinite(), message
            assert x.grad is not None
            assert x.grad.dtype == dtype
            assert all(p.grad is None or p.grad.isfinite().all() for p in loss.parameters()), message
            # The gradient grows as 1 / length: for short vectors that of some losses leaves float16, up to 65504.
            is_short = scale < 1 or not batch.embeddings.any(dim=1).all()
            if not (is_short and dtype == torch.float16 and name.startswith(STEEP)):
                assert x.grad.isfinite().all(), message


@EACH
def test_half_precision_is_only_a_coarser_input(name: str) -> None:
    """Value and gradients are those of the rounded embeddings in float32: nothing is computed in fewer digits."""
    for dtype in HALVES:
        half = BATCH.to(dtype)
        loss, expected = loss_for(name, BATCH), values(name, half.to(torch.float32))

        def under_autocast(*batch: Tensor, loss: Loss = loss, dtype: torch.dtype = dtype) -> Tensor:
            with torch.autocast("cpu", dtype=dtype):
                return loss(*batch)

        got = value_and_gradients(under_autocast, half, list(loss.parameters()))
        torch.testing.assert_close(got, [expected[0], expected[1].to(dtype), *expected[2:]], rtol=0, atol=0)


@EACH
def test_parameters_keep_their_type(name: str) -> None:
    for dtype in (torch.float64, *HALVES):
        loss, batch = loss_for(name, BATCH), BATCH.to(dtype)
        before = {key: tensor.dtype for key, tensor in loss.state_dict().items()}
        loss(batch.embeddings.clone().requires_grad_(), batch.labels).backward()
        assert {key: tensor.dtype for key, tensor in loss.state_dict().items()} == before
        assert all(p.grad is not None and p.grad.dtype == p.dtype for p in loss.parameters() if p.requires_grad)


@EACH
def test_a_backward_pass_under_autocast(name: str) -> None:
    batch = BATCH.to(torch.float32)
    expected, loss = values(name, batch), loss_for(name, BATCH)
    x = batch.embeddings.clone().requires_grad_()
    value = loss(x, batch.labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (gradient,) = torch.autograd.grad(value, x)
    torch.testing.assert_close(gradient, expected[1], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", EVERY_LOSS)
def test_labels_of_every_integer_type(name: str) -> None:
    """Also the unsigned ones, for which torch has few operations."""
    x = torch.randn(8, DIM, generator=torch.Generator().manual_seed(0))
    int64 = torch.arange(8) // 2
    for dtype in (torch.int8, torch.int16, torch.int32, torch.uint8, torch.uint16, torch.uint32, torch.uint64):
        found = []
        for labels in (int64, int64.to(dtype)):
            torch.manual_seed(0)
            loss = EVERY_LOSS[name]()
            found.append(loss(x, labels))
            if loss.supports_references and name != "CrossBatchMemory":
                found[-1] = found[-1] + EVERY_LOSS[name]()(x, labels, x, labels, 0)
        assert torch.equal(*found)


def test_labels_above_the_largest_int64_are_labels_too() -> None:
    x, labels = torch.randn(8, DIM), torch.arange(8) // 2
    large = torch.tensor([2**64 - 1, 2**64 - 1, 2**63, 2**63, 7, 7, 0, 0], dtype=torch.uint64)
    assert torch.equal(ContrastiveLoss()(x, large), ContrastiveLoss()(x, labels))
    refused_call(r"^NormSoftmaxLoss: labels from .* are not all in 0 \.\.\. 3", NormSoftmaxLoss(4, DIM), x, large)


def test_a_loss_on_another_device_than_the_embeddings() -> None:
    x, labels = torch.randn(8, DIM), torch.arange(8) // 2
    message = r"^CrossEntropyLoss: centers is on meta and the embeddings on cpu; move the loss"
    loss = CrossEntropyLoss(4, DIM).to("meta")
    refused_call(message, loss, x, labels)
    refused_call(message, loss.anchor_values, PairSource.from_batch(x, labels))


# Broken and empty input -----------------------------------------------------------------------------------------------


@EACH
def test_a_broken_embedding_breaks_the_loss(name: str) -> None:
    """Comparisons, such as a miner's, are false for NaN; the loss must not be that of a batch without pairs."""
    x, labels = BATCH.embeddings, BATCH.labels
    loss = loss_for(name, BATCH).double()
    for bad in (torch.nan, torch.inf, -torch.inf):
        broken = x.clone()
        broken[3, 2] = bad
        assert loss(broken, labels).isnan(), bad
        if loss.supports_references:
            assert loss(broken, labels, x, labels, 0).isnan(), bad
            assert loss(x, labels, broken, labels, 0).isnan(), bad
        if loss.supports_references and not name.startswith("contextual"):
            assert loss(x, labels, broken, labels).isnan(), bad


def test_every_loss_checks_its_input_by_the_same_call() -> None:
    """:meth:`PairSource.from_batch`, whose checks are tested there."""
    assert all(type(make()).forward is Loss.forward for make in EVERY_LOSS.values())


X, LABELS = torch.randn(3, 4), torch.arange(3)
NOTHING = torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)
MAKE_ANY = PATHS | {name: (lambda classes, dim, case=case: case.loss()) for name, case in cases.PATHS.items()}


@pytest.mark.parametrize("name", MAKE_ANY)
def test_nothing_to_compare_is_a_zero_that_backpropagates(name: str) -> None:
    made = MAKE_ANY[name](3, 4)
    calls = [(Batch(*NOTHING), {})]
    if made.supports_references and not name.startswith("contextual"):
        batches = Batch(X, LABELS, *NOTHING), Batch(*NOTHING, X, LABELS), Batch(*NOTHING, *NOTHING, 0)
        calls += [(batch, {}) for batch in batches]
    if name in cases.CASES or name.startswith("contextual"):
        no_pair = torch.zeros(3, 3, dtype=torch.bool)
        calls += [(Batch(X[:1], LABELS[:1]), {}), (Batch(X, LABELS), {"positive": no_pair, "negative": no_pair})]
    for batch, masks in calls:
        loss, leaf = MAKE_ANY[name](3, 4), batch.embeddings.clone().requires_grad_()
        value = loss(*batch._replace(embeddings=leaf), **masks)
        value.backward()
        assert value == 0
        assert leaf.grad is not None
        assert not leaf.grad.any()
        assert all(p.grad is None or not p.grad.any() for p in loss.parameters())


# Gradients ------------------------------------------------------------------------------------------------------------


@EACH
def test_value_is_the_same_without_gradients(name: str) -> None:
    for batch in (BATCH, BATCHES["collapsed"]):
        expected = values(name, batch)[0]
        for without in (torch.no_grad, torch.inference_mode):
            with without():
                value = loss_for(name, batch).double()(*batch)
            assert not value.requires_grad
            torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-15)


@EACH
def test_gradient_is_linear_in_the_upstream_one(name: str) -> None:
    expected, loss, x = values(name), loss_for(name, BATCH).double(), BATCH.embeddings.clone().requires_grad_()
    (-3 * loss(x, BATCH.labels)).backward()
    torch.testing.assert_close(x.grad, -3 * expected[1], **CLOSE)


@pytest.mark.parametrize("name", [*cases.DEFAULTS, *center_cases.CASES])
def test_a_second_derivative_is_refused_rather_than_wrong(name: str) -> None:
    loss, x = loss_for(name, BATCH).double(), BATCH.embeddings.clone().requires_grad_()
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(loss(x, BATCH.labels), x, create_graph=True)


# Invariance -----------------------------------------------------------------------------------------------------------


@EACH
def test_global_random_state_is_neither_read_nor_changed(name: str) -> None:
    loss, again = (loss_for(name, BATCH) for _ in range(2))
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = values(name, BATCH, loss)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    torch.testing.assert_close(values(name, BATCH, again), first, rtol=0, atol=0)
