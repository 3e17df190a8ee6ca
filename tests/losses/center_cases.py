"""All center-based losses, each beside its formula, and the batches they are tested on."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tests.losses import center_references as by_hand
from tests.losses.batches import Batch, nasty_batches
from tests.losses.gradients import value_and_gradients
from vicinal.losses import (
    ArcFaceLoss,
    CenterBasedLoss,
    CenterContrastiveLoss,
    CenterLoss,
    ClusterContrastLoss,
    CosFaceLoss,
    CrossEntropyLoss,
    NormSoftmaxLoss,
    ProxyAnchorLoss,
    ProxyNCALoss,
    ProxyNCAPlusPlusLoss,
    SoftTripleLoss,
)


@dataclass(frozen=True)
class CenterCase:
    """A loss with some arguments, and its reference.

    Attributes:
        kind: the loss's class.
        reference: the formula; takes embeddings, labels and the loss's parameters by name.
        arguments: of the class; what is not given is the paper's, also in the reference.
    """

    kind: type[CenterBasedLoss]
    reference: Callable[..., Tensor]
    arguments: dict[str, Any] = field(default_factory=dict)

    def loss(self, classes: int, dim: int, **more: Any) -> CenterBasedLoss:
        """The loss, the same in every call, with parameters in float32; none is at a special value such as 0."""
        with torch.random.fork_rng():
            torch.manual_seed(3)
            loss = self.kind(num_classes=classes, dim=dim, **{**self.arguments, **more})
            for name, parameter in loss.named_parameters():
                if name != "centers":
                    torch.nn.init.normal_(parameter)
        return loss

    def values(self, batch: Batch, classes: int, **more: Any) -> list[Tensor]:
        """The loss in the batch's number type, and its gradients by embeddings and parameters."""
        loss = self.loss(classes, batch.embeddings.shape[1], **more).to(batch.embeddings.dtype)
        return value_and_gradients(loss, batch, list(loss.parameters()))

    def values_by_hand(self, batch: Batch, classes: int) -> list[Tensor]:
        """The same by the formula, in float64."""
        parameters = dict(self.loss(classes, batch.embeddings.shape[1]).double().named_parameters())
        formula = partial(self.reference, **parameters)
        return value_and_gradients(formula, batch.to(torch.float64), list(parameters.values()))


_softmax = by_hand.cosine_softmax
CASES: dict[str, CenterCase] = {
    "NormSoftmax": CenterCase(NormSoftmaxLoss, partial(_softmax, scale=20.0)),
    "NormSoftmax, sharp": CenterCase(NormSoftmaxLoss, partial(_softmax, scale=200.0), {"scale": 200.0}),
    "NormSoftmax, smoothed": CenterCase(
        NormSoftmaxLoss, partial(_softmax, scale=20.0, label_smoothing=0.3), {"label_smoothing": 0.3}
    ),
    "NormSoftmax, all smoothed": CenterCase(
        NormSoftmaxLoss, partial(_softmax, scale=5.0, label_smoothing=1.0), {"label_smoothing": 1.0, "scale": 5.0}
    ),
    "CosFace": CenterCase(CosFaceLoss, partial(_softmax, scale=64.0, margin=0.35)),
    "CosFace, smoothed": CenterCase(
        CosFaceLoss, partial(_softmax, scale=64.0, margin=0.35, label_smoothing=0.2), {"label_smoothing": 0.2}
    ),
    "ArcFace": CenterCase(ArcFaceLoss, partial(_softmax, scale=64.0, angle=0.5)),
    "ArcFace, wide": CenterCase(ArcFaceLoss, partial(_softmax, scale=8.0, angle=2.0), {"scale": 8.0, "margin": 2.0}),
    "CCL": CenterCase(CenterContrastiveLoss, partial(_softmax, scale=16.0, label_smoothing=0.1, center_weight=1.0)),
    "CCL, margin": CenterCase(
        CenterContrastiveLoss,
        partial(_softmax, scale=16.0, label_smoothing=0.1, center_weight=2.0, margin=0.3),
        {"center_weight": 2.0, "margin": 0.3},
    ),
    "CCL, stopped": CenterCase(
        CenterContrastiveLoss,
        partial(by_hand.stopped_center_contrast, scale=16.0, center_weight=2.0, margin=0.3, label_smoothing=0.1),
        {"center_weight": 2.0, "margin": 0.3, "stop_gradient": True},
    ),
    "cluster contrast": CenterCase(ClusterContrastLoss, partial(_softmax, scale=20.0)),
    "ProxyNCA": CenterCase(ProxyNCALoss, partial(_softmax, scale=2.0, own_in_sum=False)),
    "ProxyNCA++": CenterCase(ProxyNCAPlusPlusLoss, partial(_softmax, scale=18.0)),
    "SoftTriple": CenterCase(SoftTripleLoss, partial(by_hand.soft_triple, centers_per_class=10)),
    "SoftTriple, 2": CenterCase(
        SoftTripleLoss,
        partial(by_hand.soft_triple, centers_per_class=2, scale=50.0, gamma=0.3, margin=0.2),
        {"centers_per_class": 2, "scale": 50.0, "gamma": 0.3, "margin": 0.2},
    ),
    "ProxyAnchor": CenterCase(ProxyAnchorLoss, by_hand.proxy_anchor),
    "ProxyAnchor, soft": CenterCase(
        ProxyAnchorLoss, partial(by_hand.proxy_anchor, alpha=4.0, margin=0.5), {"alpha": 4.0, "margin": 0.5}
    ),
    "cross-entropy": CenterCase(CrossEntropyLoss, by_hand.cross_entropy),
    "cross-entropy, smoothed": CenterCase(
        CrossEntropyLoss, partial(by_hand.cross_entropy, label_smoothing=0.2), {"label_smoothing": 0.2}
    ),
    "center loss": CenterCase(CenterLoss, partial(by_hand.center_loss, center_weight=0.5), {"center_weight": 0.5}),
}
"""A name is that of the loss, and its arguments other than the defaults."""

DEFAULTS = [name for name in CASES if ", " not in name]
_WHOLE = (ClusterContrastLoss, CrossEntropyLoss, ProxyAnchorLoss, SoftTripleLoss)
SHARDED = [name for name, case in CASES.items() if not issubclass(case.kind, _WHOLE)]
"""Those with the options `sharded` and `sample_rate`."""


BATCHES = {name: batch.with_classes() for name, batch in nasty_batches().items() if batch.references is None}
"""With labels 0, 1, 2, ..."""


def classes_of(batch: Batch) -> int:
    """How many classes there are in a batch of `BATCHES`."""
    return int(batch.labels.max()) + 1
