"""Calls that center-based losses refuse, each in one line, and how their centers are created."""

import copy
import re

import pytest
import torch

from tests.losses.center_cases import CASES, DEFAULTS
from tests.refusals import refused_call
from vicinal.losses import (
    CenterBasedLoss,
    ContrastiveLoss,
    NormSoftmaxLoss,
    ProxyNCALoss,
    RecallAtKLoss,
    SoftTripleLoss,
)
from vicinal.memory import CrossBatchMemory
from vicinal.mixing import SiMix
from vicinal.utils.errors import InputError

KINDS = [CASES[name].kind for name in DEFAULTS]


@pytest.mark.parametrize("case", DEFAULTS)
def test_impossible_calls(case: str) -> None:
    loss, kind = CASES[case].loss(3, 4), CASES[case].kind.__name__
    x, labels = torch.randn(3, 4), torch.arange(3)
    same = torch.eye(3, dtype=torch.bool)
    for message, call in {
        "labels from 0 to 3 are not all in 0 ... 2 (num_classes = 3)": lambda: loss(x, torch.tensor([0, 1, 3])),
        "labels from -1 to 2 are not all in 0 ... 2 (num_classes = 3)": lambda: loss(x, torch.tensor([0, -1, 2])),
        "embeddings have 5 dimensions and centers 4": lambda: loss(torch.randn(3, 5), labels),
        "the references are the class centers; give embeddings and labels alone": lambda: loss(x, labels, x, labels),
        "the positives of a sample are the centers of its class; give labels alone": lambda: loss(x, positive=same),
    }.items():
        refused_call(f"^{re.escape(f'{kind}: {message}')}$", call)
    with pytest.raises(InputError, match="the positives of a sample are the centers of its class; give labels alone"):
        loss(x, labels, relation=lambda a, b: a[:, None] == b)
    for bad in (labels.float(), labels[:2], None):
        refused_call(r"^labels must be int \[3\]", loss, x, bad)
    assert loss(x, labels).isfinite()


@pytest.mark.parametrize("kind", KINDS)
def test_without_classes_or_dimension(kind: type[CenterBasedLoss]) -> None:
    x, labels = torch.randn(3, 4), torch.arange(3)
    message = rf"^{kind.__name__}: num_classes and dim are missing; only a recipe can omit them$"
    for loss in (kind(), kind(num_classes=3), kind(dim=4)):
        refused_call(message, loss, x, labels)
        refused_call(message, loss.all_centers)
        loss.create_centers(3, 4)
        assert loss(x, labels).isfinite()
        assert (loss.num_classes, loss.dim) == (3, 4)
    with pytest.raises(InputError, match=rf"^{kind.__name__}: num_classes = 5 does not fit; it must be 3$"):
        kind(num_classes=5).create_centers(3, 4)
    refused_call(rf"^{kind.__name__}: dim = 5 does not fit; it must be 4$", kind(dim=5).create_centers, 3, 4)


def test_the_only_class_has_no_others() -> None:
    with pytest.raises(InputError, match=r"^ProxyNCALoss: one class cannot be told from others"):
        ProxyNCALoss(1, 4)(torch.randn(3, 4), torch.zeros(3, dtype=torch.int64))


@pytest.mark.parametrize("kind", KINDS)
def test_neither_memory_nor_mixtures(kind: type[CenterBasedLoss]) -> None:
    loss = kind(3, 4)
    for part in (loss, 0.5 * loss, ContrastiveLoss() + loss):
        with pytest.raises(InputError, match=rf"^CrossBatchMemory: {kind.__name__} cannot compare with a memory"):
            CrossBatchMemory(part, size=10)
        refused_call(rf"^SiMix: loss must be a loss of similarities .*, not {kind.__name__}$", SiMix, part)


def test_beside_a_memory_and_mixtures() -> None:
    """Sums may have them."""
    x, labels = torch.randn(4, 3), torch.tensor([0, 0, 1, 1])
    parts = NormSoftmaxLoss(2, 3), CrossBatchMemory(ContrastiveLoss(), size=10), SiMix(RecallAtKLoss(1))
    expected = sum(copy.deepcopy(part)(x, labels) for part in parts)
    torch.testing.assert_close(sum(parts)(x, labels), expected)


# Centers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_centers_start_as_random_directions_of_length_one_on_average(kind: type[CenterBasedLoss]) -> None:
    torch.manual_seed(0)
    first = kind(400, 64).centers.detach()
    torch.manual_seed(0)
    assert torch.equal(kind(400, 64).centers, first)
    assert not torch.equal(kind(400, 64).centers, first)
    lengths = first.norm(dim=1)
    assert 0.97 < lengths.mean() < 1.03
    assert (first / lengths[:, None]).mean(dim=0).abs().max() < 0.05


def test_centers_are_set_by_class() -> None:
    loss = NormSoftmaxLoss(5, 3)
    before = loss.centers.detach().clone()
    loss.set_centers(torch.tensor([4, 1]), 7 * torch.eye(3)[:2])
    assert torch.equal(loss.centers[[4, 1]], torch.eye(3)[:2])
    assert torch.equal(loss.centers[[0, 2, 3]], before[[0, 2, 3]])
    assert loss.centers.requires_grad
    assert torch.equal(loss.all_centers(), loss.centers)
    assert not loss.all_centers().requires_grad


def test_one_vector_stands_in_for_all_centers_of_a_class() -> None:
    """Close to it, and apart, so that they can become different."""
    loss = SoftTripleLoss(3, 64, centers_per_class=4)
    vectors = torch.nn.functional.normalize(torch.randn(2, 64))
    loss.set_centers(torch.tensor([2, 0]), vectors)
    centers = loss.centers.detach().view(3, 4, 64)
    for place, vector in ((2, vectors[0]), (0, vectors[1])):
        assert (torch.nn.functional.normalize(centers[place]) @ vector > 0.98).all()
        assert len(centers[place].unique(dim=0)) == 4
    loss.set_centers(torch.tensor([1]), torch.eye(64)[None, :4])
    assert torch.equal(loss.centers[4:8], torch.eye(64)[:4])


@pytest.mark.parametrize("case", CASES)
def test_state(case: str) -> None:
    """It comes back into a loss of the same arguments, also one that has no centers yet."""
    x, labels = torch.randn(6, 4), torch.arange(6) % 3
    loss = CASES[case].loss(3, 4).eval()
    for other in (CASES[case].kind(3, 4, **CASES[case].arguments), CASES[case].kind(**CASES[case].arguments)):
        other.load_state_dict(loss.state_dict())
        assert other.eval()(x, labels) == loss(x, labels)
        assert [p.requires_grad for p in other.parameters()] == [p.requires_grad for p in loss.parameters()]
    with pytest.raises(RuntimeError, match="size mismatch"):
        CASES[case].kind(5, 4, **CASES[case].arguments).load_state_dict(loss.state_dict())
