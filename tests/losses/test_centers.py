"""Losses of class centers equal their formulas, value and gradients, whole and in tiles."""

from __future__ import annotations

import pytest
import torch

from tests.losses.center_cases import BATCHES, CASES, DEFAULTS, classes_of
from tests.losses.gradients import value_and_gradients
from vicinal.losses import proxy_anchor
from vicinal.similarity import center_sum
from vicinal.similarity.pair_source import PairSource

ABSENT = {"shuffled": 3, "many classes": 20, "one class": 1, "one sample": 4}
"""Batches that are also tested with so many classes that are not in them."""


SIZES = [*((name, 0) for name in BATCHES if name != "zero vector"), *ABSENT.items()]


@pytest.mark.parametrize("case", CASES)
def test_value_and_gradients_are_the_formulas(case: str) -> None:
    for name, absent in SIZES:
        classes = classes_of(BATCHES[name]) + absent
        if case == "ProxyNCA" and classes == 1:
            continue  # one class has no others
        got, expected = (of(BATCHES[name], classes) for of in (CASES[case].values, CASES[case].values_by_hand))
        if case.startswith("ArcFace") and name == "one dimension":  # angles of 0 and pi have no slope
            got, expected = got[:1], expected[:1]
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(("tile", "rows", "kept"), [(1, 100, 2**25), (60, 7, 2**25), (60, 7, 0), (2**20, 7, 0)])
@pytest.mark.parametrize("case", CASES)
def test_tiles_change_nothing(case: str, tile: int, rows: int, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of few centers, blocks of few anchors, tiles that are computed once and those that are computed twice."""
    batch = BATCHES["many classes"]
    expected = CASES[case].values(batch, 13)
    for module in (center_sum, proxy_anchor):
        monkeypatch.setattr(module, "tile_elements", lambda device: tile)
    monkeypatch.setattr(center_sum, "MIN_ROWS", 7)
    monkeypatch.setattr(center_sum, "BLOCK_ROWS", rows)
    monkeypatch.setattr(center_sum, "MAX_KEPT", kept)
    monkeypatch.setattr(center_sum, "MAX_KEPT_TILES", 4 if kept else 0)
    torch.testing.assert_close(CASES[case].values(batch, 13), expected, rtol=1e-10, atol=1e-12)
    with torch.no_grad():
        value = CASES[case].loss(13, 8).double()(batch.embeddings, batch.labels)
    torch.testing.assert_close(value, expected[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("case", ["NormSoftmax", "CCL, margin", "CCL, stopped", "SoftTriple", "cross-entropy"])
def test_values_of_single_anchors(case: str) -> None:
    """Those that their mean is of, without a term that no anchor has alone."""
    more = {"regularizer": 0.0} if case == "SoftTriple" else {}
    batch, loss = BATCHES["shuffled"], CASES[case].loss(6, 5, **more).double()
    values = loss.anchor_values(PairSource.from_batch(*batch))
    alone = [loss(x[None], y[None]).detach() for x, y in zip(*batch[:2], strict=True)]
    torch.testing.assert_close(values, torch.stack(alone), rtol=1e-10, atol=1e-12)
    assert not values.requires_grad


@pytest.mark.parametrize("case", [name for name in DEFAULTS if name != "SoftTriple"] + ["SoftTriple, 2"])
def test_gradcheck(case: str) -> None:
    """By differences, so that the gradients of loss and formula cannot be wrong together."""
    x, labels, *_ = BATCHES["two of two classes"]
    loss = CASES[case].loss(3, 5).double().eval()
    parameters = [p for p in loss.parameters() if p.requires_grad]
    inputs = (x.clone().requires_grad_(), *parameters)
    assert torch.autograd.gradcheck(lambda x, *_: loss(x, labels), inputs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_either_side_alone_has_its_gradient(case: str) -> None:
    """Embeddings that do not learn, as with a frozen model, and centers that do not."""
    batch, loss = BATCHES["shuffled"], CASES[case].loss(5, 5).double()
    _, grad_embeddings, *by_parameters = value_and_gradients(loss, batch, list(loss.parameters()))
    loss = CASES[case].loss(5, 5).double()
    learning = [p for p in loss.parameters() if p.requires_grad]
    if learning:
        got = torch.autograd.grad(loss(*batch), learning)
        torch.testing.assert_close(list(got), by_parameters, rtol=1e-12, atol=1e-14)
    loss = CASES[case].loss(5, 5).double().requires_grad_(False)
    torch.testing.assert_close(value_and_gradients(loss, batch)[1], grad_embeddings, rtol=1e-12, atol=1e-14)
