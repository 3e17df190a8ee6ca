"""Pairs given by masks or by a relation of labels, in place of equal labels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.losses.batches import nasty_batches
from tests.losses.cases import DEFAULTS, EACH
from tests.losses.gradients import value_and_gradients
from vicinal.losses import ContrastiveLoss

BATCHES = nasty_batches()
CLOSE = {"rtol": 1e-10, "atol": 1e-13}


def same(labels: Tensor, reference_labels: Tensor) -> Tensor:
    return labels[:, None] == reference_labels


@pytest.mark.parametrize("case", EACH)
def test_masks_and_relations_that_say_the_same_as_labels(case: str) -> None:
    for name in ("unequal classes", "references around the batch", "references lack a class"):
        batch = EACH[case].suited(BATCHES[name])
        reference_labels = batch.labels if batch.reference_labels is None else batch.reference_labels
        positive = same(batch.labels, reference_labels)
        for pairs in ({"positive": positive}, {"positive": positive, "negative": ~positive}, {"relation": same}):
            loss = EACH[case].loss(tile_rows=4).double()
            given = value_and_gradients(
                lambda *batch, loss=loss, pairs=pairs: loss(*batch, **pairs), batch, list(loss.parameters())
            )
            torch.testing.assert_close(given, EACH[case].values(batch), **CLOSE)


@pytest.mark.parametrize("case", [name for name in DEFAULTS if "num_classes" not in DEFAULTS[name].arguments])
def test_masks_need_no_labels(case: str) -> None:
    batch = BATCHES["unequal classes"]
    value = DEFAULTS[case].loss()(batch.embeddings, positive=same(batch.labels, batch.labels))
    torch.testing.assert_close(value, DEFAULTS[case].loss()(batch.embeddings, batch.labels), **CLOSE)


@pytest.mark.parametrize("case", DEFAULTS)
def test_an_anchor_is_no_pair_of_itself_whatever_the_masks_say(case: str) -> None:
    batch = DEFAULTS[case].suited(BATCHES["unequal classes"])
    positive = same(batch.labels, batch.labels)
    diagonal = torch.eye(12, dtype=torch.bool)
    value = DEFAULTS[case].loss()(*batch, positive=positive & ~diagonal, negative=~positive | diagonal)
    torch.testing.assert_close(value, DEFAULTS[case].loss()(*batch), **CLOSE)


NOT_RANDOM = [name for name, case in DEFAULTS.items() if not case.is_random]  # a draw belongs to a place in the batch


@pytest.mark.parametrize("case", [name for name in NOT_RANDOM if "num_classes" not in DEFAULTS[name].arguments])
def test_pairs_that_are_neither_count_for_nothing(case: str) -> None:
    """A sample that is in no pair might as well not be there; but means over all anchors count it."""
    batch = BATCHES["unequal classes"]
    positive = same(batch.labels, batch.labels)
    in_a_pair = torch.ones(12, 12, dtype=torch.bool)
    in_a_pair[:, 4] = in_a_pair[4, :] = False
    others = torch.arange(12) != 4
    loss = DEFAULTS[case].loss()
    value = loss(batch.embeddings, positive=positive & in_a_pair, negative=~positive & in_a_pair)
    expected = loss(batch.embeddings[others], batch.labels[others])
    over_all_anchors = getattr(loss, "reduction", None) == "anchors"
    torch.testing.assert_close(value * (12 / 11 if over_all_anchors else 1), expected, **CLOSE)


def test_a_relation_of_several_labels_an_image() -> None:
    x = torch.eye(3)
    tags = torch.tensor([[1, 1, 0], [0, 1, 0], [0, 0, 1]])
    value = ContrastiveLoss()(x, tags, relation=lambda a, b: (a[:, None] * b).any(dim=-1))
    assert value.item() == pytest.approx(0.9)  # the first two share a tag, at similarity 0; no negative violates
