"""What a loss must not depend on: order, names of classes, identity of objects, global random state."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.losses.batches import Batch, nasty_batches
from tests.losses.cases import DEFAULTS, EACH
from vicinal.losses import HistogramLoss

BATCHES = nasty_batches()
CLOSE = {"rtol": 1e-10, "atol": 1e-13}
NOT_RANDOM = [name for name, case in EACH.items() if not case.is_random]  # a draw belongs to a place in the batch


def order_of(labels: Tensor) -> Tensor:
    return torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("case", NOT_RANDOM)
def test_permuting_the_batch_permutes_the_gradient(case: str) -> None:
    for name in ("unequal classes", "many classes", "singletons", "opposites"):
        batch = EACH[case].suited(BATCHES[name])
        order = order_of(batch.labels)
        value, gradient, *others = EACH[case].values(batch)
        permuted = EACH[case].values(Batch(batch.embeddings[order], batch.labels[order]))
        torch.testing.assert_close(permuted, [value, gradient[order], *others], **CLOSE)


@pytest.mark.parametrize("case", NOT_RANDOM)
def test_permuting_the_references_permutes_their_gradient(case: str) -> None:
    batch = EACH[case].suited(BATCHES["references beside the batch"])
    order = order_of(batch.reference_labels)
    value, gradient, by_references, *others = EACH[case].values(batch)
    permuted = batch._replace(references=batch.references[order], reference_labels=batch.reference_labels[order])
    expected = [value, gradient, by_references[order], *others]
    torch.testing.assert_close(EACH[case].values(permuted), expected, **CLOSE)


@pytest.mark.parametrize("case", [name for name in EACH if "num_classes" not in EACH[name].arguments])
def test_names_of_classes_do_not_matter(case: str) -> None:
    batch = BATCHES["shuffled"]
    renamed = batch._replace(labels=torch.tensor([40, -3, 2**50, 0])[batch.labels])
    torch.testing.assert_close(EACH[case].values(renamed), EACH[case].values(batch), rtol=0, atol=0)


@pytest.mark.parametrize("case", EACH)
def test_references_may_be_the_same_object_or_a_copy(case: str) -> None:
    """Which reference an anchor is, the offset says; nothing is guessed from whose memory it lies in."""
    batch = EACH[case].suited(BATCHES["unequal classes"])
    value, gradient, *_ = EACH[case].values(batch)
    x = batch.embeddings.clone().requires_grad_()
    for references, labels in ((x, batch.labels), (x.clone(), batch.labels.clone())):
        same = EACH[case].loss().double()(x, batch.labels, references, labels, 0)
        torch.testing.assert_close(same.detach(), value, **CLOSE)
        torch.testing.assert_close(torch.autograd.grad(same, x)[0], gradient, **CLOSE)


@pytest.mark.parametrize("case", DEFAULTS)
def test_without_an_offset_the_same_object_is_another_sample(case: str) -> None:
    """An anchor's twin in a memory is a positive, also where the memory happens to be the batch itself."""
    batch = DEFAULTS[case].suited(BATCHES["unequal classes"])
    x, labels = batch.embeddings, batch.labels
    value = DEFAULTS[case].loss().double()(x, labels, x, labels)
    expected, *_ = DEFAULTS[case].values_by_hand(Batch(x, labels, x.clone(), labels.clone()))
    torch.testing.assert_close(value.detach(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("case", [name for name, case in DEFAULTS.items() if case.kind is not HistogramLoss])
def test_sums_of_pieces_against_the_whole_batch_add_up(case: str) -> None:
    """Each piece of the batch with its offset in the whole of it; random miners draw the same in every piece."""
    batch = DEFAULTS[case].suited(BATCHES["unequal classes"])
    x, labels = batch.embeddings.clone().requires_grad_(), batch.labels
    pieces = [
        DEFAULTS[case].loss(reduction="sum").double()(x[start:stop], labels[start:stop], x, labels, start)
        for start, stop in [(0, 4), (4, 9), (9, 12)]
    ]
    whole = DEFAULTS[case].loss(reduction="sum").double()(x, labels)
    torch.testing.assert_close(sum(pieces), whole, **CLOSE)
    expected = torch.autograd.grad(whole, x)
    torch.testing.assert_close(torch.autograd.grad(sum(pieces), x), expected, **CLOSE)
