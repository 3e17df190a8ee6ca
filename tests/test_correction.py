"""Forward correction equals its formula, value and gradients; the matrix is estimated as in the paper."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.losses.center_cases import BATCHES, classes_of
from tests.losses.center_references import unit
from tests.losses.gradients import value_and_gradients
from tests.refusals import refused_call
from vicinal.correction import ForwardCorrection, estimate_transition
from vicinal.losses import (
    ArcFaceLoss,
    CenterContrastiveLoss,
    CenterLoss,
    CosFaceLoss,
    CrossEntropyLoss,
    MultiSimilarityLoss,
    NormSoftmaxLoss,
    ProxyNCALoss,
    ProxyNCAPlusPlusLoss,
    SoftTripleLoss,
)
from vicinal.losses.center_softmax import CenterSoftmaxLoss
from vicinal.memory import CrossBatchMemory
from vicinal.similarity import center_sum
from vicinal.similarity.pair_source import PairSource
from vicinal.utils.errors import InputError

Logits = Callable[[Tensor, int, CenterSoftmaxLoss], Tensor]


def cosine_logits(x: Tensor, y: int, loss: Any) -> Tensor:
    cosines = unit(loss.centers) @ unit(x)
    own = cosines[y]
    if isinstance(loss, ArcFaceLoss):
        own = (own.clamp(-1, 1).acos() + loss.margin).cos()  # no angle of these batches is beyond pi - margin
    elif isinstance(loss, CosFaceLoss):
        own = own - loss.margin
    return loss.scale * torch.where(torch.arange(len(cosines)) == y, own, cosines)


def linear_logits(x: Tensor, y: int, loss: Any) -> Tensor:
    return loss.centers @ x + loss.bias


KINDS: dict[str, tuple[Callable[..., CenterSoftmaxLoss], Logits]] = {
    "CrossEntropy": (CrossEntropyLoss, linear_logits),
    "NormSoftmax": (NormSoftmaxLoss, cosine_logits),
    "CosFace": (lambda *sizes: CosFaceLoss(*sizes, scale=16.0), cosine_logits),
    "ArcFace": (lambda *sizes: ArcFaceLoss(*sizes, scale=8.0, margin=0.2), cosine_logits),
    "ProxyNCA++": (ProxyNCAPlusPlusLoss, cosine_logits),
}


def build(kind: str, classes: int, dim: int, noise_rate: float | None = None) -> ForwardCorrection:
    torch.manual_seed(3)
    loss = KINDS[kind][0](classes, dim)
    if isinstance(loss, CrossEntropyLoss):
        torch.nn.init.normal_(loss.bias)
    return ForwardCorrection(loss, noise_rate).double()


def by_hand(loss: ForwardCorrection, logits: Logits, matrix: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """-log( sum_i T_iy p_i ), one sample after the other."""

    def formula(embeddings: Tensor, labels: Tensor) -> Tensor:
        values = []
        for x, y in zip(embeddings, labels.tolist(), strict=True):
            p = logits(x, y, loss.loss).softmax(0)
            values.append(-(matrix[:, y] * p).sum().log())
        return torch.stack(values).mean()

    return formula


def uniform(classes: int, rate: float) -> Tensor:
    matrix = torch.full((classes, classes), rate / max(classes - 1, 1), dtype=torch.float64)
    return matrix.fill_diagonal_(1 - rate if classes > 1 else 1.0)


def random_matrix(classes: int, sparse: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    matrix = torch.rand(classes, classes, generator=generator, dtype=torch.float64) ** 4
    if sparse:
        matrix *= torch.rand(classes, classes, generator=generator) < 0.4
    return torch.nn.functional.normalize(matrix + torch.eye(classes), p=1, dim=1)


@pytest.mark.parametrize("kind", KINDS)
def test_value_and_gradients_are_the_formula(kind: str) -> None:
    for name, batch in BATCHES.items():
        if name in ("zero vector", "one dimension") or (kind == "ArcFace" and name == "opposites"):
            continue
        for absent, rates, sparse in ((0, (0.0, 0.45), True), (3, (0.2,), False)):
            classes, dim = classes_of(batch) + absent, batch.embeddings.shape[1]
            rates = rates if classes > 1 else (0.2,)
            matrices: list[tuple[float | None, Tensor]] = [(rate, uniform(classes, rate)) for rate in rates]
            matrices.append((None, random_matrix(classes, sparse)))
            for rate, matrix in matrices:
                loss = build(kind, classes, dim, rate)
                if rate is None:
                    loss.set_transition(matrix)
                    matrix = loss.transition.double()
                parameters = list(loss.parameters())
                got = value_and_gradients(loss, batch, parameters)
                expected = value_and_gradients(by_hand(loss, KINDS[kind][1], matrix), batch, parameters)
                message = f"{name}, {classes} classes, noise rate {rate}"
                torch.testing.assert_close(
                    got, expected, rtol=1e-8, atol=1e-9, msg=lambda text, m=message: f"{m}: {text}"
                )
                values = loss.anchor_values(PairSource.from_batch(batch.embeddings, batch.labels))
                torch.testing.assert_close(values.mean(), got[0])
                assert not values.requires_grad


def test_tiles_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, loss = BATCHES["many classes"], build("NormSoftmax", 13, 8, 0.3)
    expected = value_and_gradients(loss, batch, list(loss.parameters()))
    for name, value in (("tile_elements", lambda device: 60), ("MIN_ROWS", 7), ("BLOCK_ROWS", 7)):
        monkeypatch.setattr(center_sum, name, value)
    got = value_and_gradients(loss, batch, list(loss.parameters()))
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rate", [1e-9, 0.5, None])
def test_sure_and_wrong_models_have_finite_values_and_gradients(dtype: torch.dtype, rate: float | None) -> None:
    loss = ForwardCorrection(NormSoftmaxLoss(3, 3, scale=1e4), rate)
    loss.loss.centers.data.copy_(torch.eye(3))
    if rate is None:
        loss.set_transition(torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]]))
    x = torch.eye(3, dtype=dtype).repeat_interleave(3, dim=0).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(x, torch.arange(9) % 3)
    value.backward()
    assert value.isfinite()
    assert value.dtype == torch.float32
    assert x.grad.isfinite().all()
    assert loss.loss.centers.grad.isfinite().all()


def test_an_empty_batch_has_gradients_of_zero() -> None:
    loss = ForwardCorrection(CrossEntropyLoss(3, 4), 0.2)
    value = loss(torch.zeros(0, 4, requires_grad=True), torch.zeros(0, dtype=torch.int64))
    value.backward()
    assert not value
    assert all(p.grad is not None and not p.grad.any() for p in loss.parameters())


def test_the_matrix_is_part_of_the_state() -> None:
    first, second = (ForwardCorrection(NormSoftmaxLoss(4, 5)) for _ in range(2))
    first.set_transition(random_matrix(4))
    second.load_state_dict(first.state_dict())
    x, labels = torch.randn(6, 5), torch.arange(6) % 4
    assert torch.equal(first(x, labels), second(x, labels))


@pytest.mark.parametrize("quantile", [1.0, 0.9, 0.5, 0.0])
def test_the_estimate_is_the_rows_of_the_surest_images(quantile: float) -> None:
    probabilities = torch.randn(50, 6, generator=torch.Generator().manual_seed(0)).mul(3).softmax(1)
    rows = []
    for label in range(6):
        by_rank = sorted(range(50), key=lambda image: probabilities[image, label].item())
        rows.append(probabilities[by_rank[math.floor(quantile * 49)]])
    assert torch.equal(estimate_transition(probabilities, quantile), torch.stack(rows))


def test_class_logits_are_those_without_margin() -> None:
    x = torch.randn(7, 5)
    for loss in (CosFaceLoss(4, 5), CenterContrastiveLoss(4, 5, sample_rate=0.5), ProxyNCALoss(4, 5)):
        expected = loss.scale * unit(x) @ unit(loss.centers.detach()).T
        torch.testing.assert_close(loss.class_logits(x), expected, rtol=1e-4, atol=1e-4)
    linear = CrossEntropyLoss(4, 5)
    torch.nn.init.normal_(linear.bias)
    torch.testing.assert_close(linear.class_logits(x), (x @ linear.centers.T + linear.bias).detach())
    triple = SoftTripleLoss(4, 5, centers_per_class=3)
    cosines = (unit(x) @ unit(triple.centers.detach()).T).view(7, 4, 3)
    expected = triple.scale * ((cosines / triple.gamma).softmax(2) * cosines).sum(2)
    torch.testing.assert_close(triple.class_logits(x), expected, rtol=1e-4, atol=1e-4)


def test_bad_input() -> None:
    for loss, message in (
        (MultiSimilarityLoss(), "loss must have class probabilities, like CrossEntropyLoss, not MultiSimilarityLoss"),
        (CenterContrastiveLoss(label_smoothing=0), "CenterContrastiveLoss is not only the likelihood of a softmax"),
        (CenterLoss(), "CenterLoss is not only the likelihood"),
        (SoftTripleLoss(), "SoftTripleLoss is not only the likelihood"),
        (ProxyNCALoss(), "ProxyNCALoss is not only the likelihood"),
        (CrossEntropyLoss(label_smoothing=0.1), "CrossEntropyLoss has label_smoothing = 0.1; leave it out"),
        (NormSoftmaxLoss(sample_rate=0.5), "NormSoftmaxLoss has sample_rate = 0.5; leave it out"),
    ):
        refused_call(message, ForwardCorrection, loss)
    refused_call(r"noise_rate = 1\.5 must be from 0 to 1", ForwardCorrection, NormSoftmaxLoss(), 1.5)
    x, labels = torch.randn(4, 5), torch.arange(4)
    with pytest.raises(InputError, match=r"noise_rate = 0\.8 must be below 0\.75 with 4 classes"):
        ForwardCorrection(NormSoftmaxLoss(4, 5), 0.8)(x, labels)
    with pytest.raises(InputError, match="noise_rate is missing; give it, or a transition matrix"):
        ForwardCorrection(NormSoftmaxLoss(4, 5))(x, labels)
    with pytest.raises(InputError, match="noise_rate and a transition matrix are given"):
        ForwardCorrection(NormSoftmaxLoss(4, 5), 0.1).set_transition(torch.eye(4))
    with pytest.raises(InputError, match=r"ForwardCorrection .* with a memory"):
        CrossBatchMemory(ForwardCorrection(NormSoftmaxLoss(4, 5), 0.1), size=8)
    lacks = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    for matrix, message in (
        (torch.ones(3), r"a transition matrix is \[classes, classes\], not \[3\]"),
        (torch.eye(3), "the transition matrix has 3 classes, and the loss 4"),
        (torch.eye(4) * 0.9, "transition matrix: row 0 is not a distribution, numbers of at least 0 that sum to 1"),
        (torch.eye(4) * math.nan, "row 0 is not a distribution"),
        (torch.tensor([[1.5, -0.5], [0, 1]]), "row 0 is not a distribution"),
        (lacks, "no class has the label 1; column 1 is 0"),
    ):
        loss = ForwardCorrection(NormSoftmaxLoss(4 if "loss 4" in message or len(matrix) == 4 else len(matrix), 5))
        refused_call(message, loss.set_transition, matrix)
    refused_call(r"takes probabilities \[images, classes\], not \[0, 3\]", estimate_transition, torch.zeros(0, 3))
    with pytest.raises(InputError, match="probabilities: row 1 is not a distribution"):
        estimate_transition(torch.tensor([[0.5, 0.5], [0.5, 0.6]]))
    refused_call("quantile = 97 must be from 0 to 1", estimate_transition, torch.eye(2), 97)
