"""The loss of mixed examples that Metrix adds, written from the general form of its paper: pair by pair, in float64."""

from collections.abc import Callable, Iterable
from inspect import signature
from typing import NamedTuple

import torch
from scipy.special import betaincinv
from torch import Tensor

from tests.losses.references import Anchor
from vicinal.losses import Loss
from vicinal.utils.seeds import derive_seed, uniform


class Form(NamedTuple):
    """The functions of Table 1 of the paper: `tau(sigma_p(sum y rho_p(s)) + sigma_n(sum (1 - y) rho_n(s)))`."""

    rho_p: Callable[[Tensor], Tensor]
    rho_n: Callable[[Tensor], Tensor]
    sigma_p: Callable[[Tensor], Tensor] = lambda x: x
    sigma_n: Callable[[Tensor], Tensor] = lambda x: x
    tau: Callable[[Tensor], Tensor] = lambda x: x
    mean: bool = False
    """Whether sums are divided by the sums of their weights."""


Mixed = list[tuple[Tensor, float]]
"""Similarity and label of the mixed examples of an anchor."""


def form(name: str, loss: Loss) -> Form:
    """The form of a loss with some constants."""
    if name == "ContrastiveLoss":
        if loss.positive_margin is None:
            return Form(lambda s: -s, lambda s: torch.relu(s - loss.negative_margin))
        return Form(lambda s: torch.relu(loss.positive_margin - s), lambda s: torch.relu(s - loss.negative_margin))
    if name == "NCALoss":
        e = lambda s: torch.exp(loss.scale * s)  # noqa: E731
        return Form(e, e, lambda x: -torch.log(x), torch.log, lambda x: torch.log(1 + torch.exp(x)))
    if name == "LiftedStructureLoss":
        return Form(lambda s: torch.exp(loss.margin - s), torch.exp, torch.log, torch.log, torch.relu)
    if name == "CircleLoss":
        m, scale = loss.margin, loss.scale
        return Form(
            lambda s: torch.exp(-scale * torch.relu(1 + m - s.detach()) * (s - 1 + m)),
            lambda s: torch.exp(scale * torch.relu(s.detach() + m) * (s - m)),
            torch.log,
            torch.log,
            lambda x: torch.log(1 + torch.exp(x)),
        )
    a, b = loss.alpha, loss.beta
    if name == "LiftedStructureStarLoss":
        return Form(
            lambda s: torch.exp(-a * s),
            lambda s: torch.exp(b * s),
            lambda x: torch.log(x) / a,
            lambda x: torch.log(x) / b,
        )
    rho_p, rho_n = lambda s: torch.exp(-a * (s - loss.base)), lambda s: torch.exp(b * (s - loss.base))
    binomial = Form(lambda s: torch.log(1 + rho_p(s)), lambda s: torch.log(1 + rho_n(s)), mean=True)
    if name == "BinomialDevianceLoss":
        return binomial
    if name == "BinLiftedLoss":  # its other half is LiftedStruct*
        return binomial._replace(sigma_p=lambda x: x / a, sigma_n=lambda x: x / b, mean=False)
    assert name == "MultiSimilarityLoss"
    return Form(rho_p, rho_n, lambda x: torch.log(loss.plus_one + x) / a, lambda x: torch.log(loss.plus_one + x) / b)


def value_of_anchor(of: Form, mixed: Mixed) -> Tensor:
    """The general form; 0 without mixed examples."""
    if not mixed:
        return torch.zeros((), dtype=torch.float64)
    positive, negative = sum(y * of.rho_p(s) for s, y in mixed), sum((1 - y) * of.rho_n(s) for s, y in mixed)
    if of.mean:
        positive, negative = positive / sum(y for _, y in mixed), negative / sum(1 - y for _, y in mixed)
    return of.tau(of.sigma_p(positive) + of.sigma_n(negative))


def mixed_loss(loss: Loss, anchors: list[Mixed]) -> Tensor:
    """The loss of the mixed examples of all anchors."""
    name = type(loss).__name__
    forms = [form(name, loss), *([form("LiftedStructureStarLoss", loss)] if name == "BinLiftedLoss" else [])]
    if loss.reduction in ("violating", "pairs"):
        return _weighted_means(forms[0], [pair for mixed in anchors for pair in mixed], loss)
    values = [value_of_anchor(of, mixed) / len(forms) for of in forms for mixed in anchors]
    number = {"sum": 1, "anchors": len(anchors), "contributing": sum(map(bool, anchors))}[loss.reduction]
    return sum(values) / max(number, 1)


def _weighted_means(of: Form, pairs: Mixed, loss: Loss) -> Tensor:
    """The two terms of the contrastive loss, each divided by the weight of all or of the violating pairs."""
    total = torch.zeros((), dtype=torch.float64)
    for rho, weight_of in ((of.rho_p, lambda y: y), (of.rho_n, lambda y: 1 - y)):
        counted = [(rho(s), weight_of(y)) for s, y in pairs]
        if loss.reduction == "violating" and not (rho is of.rho_p and loss.positive_margin is None):
            counted = [(value, weight) for value, weight in counted if value > 0]
        if counted:
            total = total + sum(value * weight for value, weight in counted) / sum(weight for _, weight in counted)
    return total


def coefficient(place: int, partner: int, column: int, alpha: float = 2.0, seed: int = 0, call: int = 1) -> float:
    """The mixing coefficient of a partner and a negative, as the library draws it."""
    key = torch.tensor([place + (call << 32)])
    of_partner = uniform(derive_seed(0x4D65, seed), key, partner + 1)[0, -1].item()
    of_negative = uniform(derive_seed(0x4D66, seed), key, column + 1)[0, -1].item()
    quantile = int(4096 * (of_partner + of_negative)) % 4096
    return torch.tensor(betaincinv(alpha, alpha, (quantile + 0.5) / 4096)).float().item()


def mixed_examples(anchor: Anchor, pairs: str, **drawn: float) -> Mixed:
    """The mixed examples of an anchor; its pairs are in the order of their columns."""
    itself = [torch.ones((), dtype=torch.float64)]
    positives = [anchor.positives[j] for j in sorted(anchor.positives)]
    partners = {"positive-negative": positives, "anchor-negative": itself, "both": itself + positives}[pairs]
    mixed = []
    for k, partner in enumerate(partners):
        for j, negative in anchor.negatives.items():
            y = coefficient(anchor.place, k, j, **drawn)
            mixed.append((y * partner + (1 - y) * negative, y))
    return mixed


def metrix(
    anchors: Iterable[Anchor],
    clean: Callable[..., Tensor],
    loss: Loss,
    weight: float = 0.4,
    pairs: str = "positive-negative",
    **drawn: float,
) -> Tensor:
    """A loss, `clean`, plus the weighted loss of the mixed examples."""
    anchors = list(anchors)
    constants = {name: getattr(loss, name) for name in signature(clean).parameters if name != "anchors"}
    mixed = mixed_loss(loss, [mixed_examples(anchor, pairs, **drawn) for anchor in anchors])
    return clean(anchors, **constants) + weight * mixed
