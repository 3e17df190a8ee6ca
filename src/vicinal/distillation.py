"""S2SD: higher-dimensional embeddings of the same features are trained beside the model's, and distilled into them."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, cast

import torch
from torch import Tensor, nn

from vicinal.losses.base import Loss, zero_loss
from vicinal.losses.center_based import CenterBasedLoss
from vicinal.similarity.embeddings import at_least_float32
from vicinal.similarity.pair_source import PairSource
from vicinal.similarity.tiles import refuse_second_derivative
from vicinal.utils.arguments import (
    check_list,
    check_nonnegative,
    check_nonnegative_integer,
    check_positive,
    check_positive_integer,
    given,
    is_integer,
    shown,
)
from vicinal.utils.devices import default_tile_rows, ieee_products
from vicinal.utils.errors import InputError

__all__ = ["S2SD"]

MAX_DIM = 65_536  # of a head, as of a model


def __dir__() -> list[str]:
    return __all__


class S2SD(Loss):
    """Simultaneous similarity-based self-distillation: the loss L of the embeddings f and of m higher-dimensional
    embeddings g_i of the same images, whose similarities the embeddings learn to reproduce,

        1/2 (L(f) + 1/m sum_i L(g_i)) + weight / m sum_i D(f, g_i) + feature_weight D(f, features)

        D(f, g) = temperature^2 mean_a KL( softmax(S_g[a] / temperature) || softmax(S_f[a] / temperature) )

    where `S[a]` are the similarities of an anchor to all samples of the batch, itself included. The g_i are computed
    from the pooled features of the backbone, by heads of two linear layers with a ReLU, each with a loss of its own.
    Distillation has no gradient with respect to g_i and features; distillation from the features starts after
    `feature_warmup` calls. The heads belong to the loss and its checkpoints, not to the trained model.

    The KL divergence from target to embedding and its mean over anchors are those of the authors' published code; the
    paper writes a sum. The features are those that the model pools, so `pooling: avg+max` gives the paper's variant
    with both.

    The loss needs the features: a recipe hands them over. In a loop of your own give
    `loss(embeddings, labels, features=features)`, or `PairSource.from_distributed_batch(embeddings, labels, features)`.
    A loss with class centers gets centers of its own for each head. Memory is linear in the batch.

    Reference: Roth et al., "Simultaneous Similarity-based Self-Distillation for Deep Metric Learning", ICML 2021,
    Section 3, with the values of its published code. One number in `dims` is its DSD, several are its MSD, and with
    `feature_weight` above 0 its MSDF.

    Args:
        loss: any loss, or sum of losses; the heads get copies of it.
        dims: dimension of each g_i, normally above that of the embeddings.
        in_features: dimension of the features; None: the trainer of a recipe sets it.
        temperature: of both softmax functions.
        weight: of the distillation from the g_i, the paper's gamma.
        feature_weight: of the distillation from the features; 0: none.
        feature_warmup: number of first calls without distillation from the features.

    Raises:
        InputError: an argument is out of range, or the loss is an S2SD itself; when called: there are no features, they
            have another dimension than `in_features`, or there are references that are not from the batch.

    Example:
        >>> from vicinal.losses import MultiSimilarityLoss
        >>> features = torch.tensor([[1.0, 0.0, 2.0], [0.5, 1.0, 0.0], [0.0, 1.0, 1.0], [2.0, 0.0, 1.0]])
        >>> loss = S2SD(MultiSimilarityLoss(), dims=[8, 16], in_features=3)
        >>> loss(features[:, :2], torch.tensor([7, 7, 9, 9]), features=features).requires_grad
        True
    """

    supports_references = False
    uses_features = True

    def __init__(
        self,
        loss: Loss,
        dims: Sequence[int] = (512, 1024, 1536, 2048),
        in_features: int | None = None,
        temperature: float = 1.0,
        weight: float = 50.0,
        feature_weight: float = 50.0,
        feature_warmup: int = 1000,
    ) -> None:
        super().__init__()
        if not isinstance(loss, Loss) or any(isinstance(part, S2SD) for part in loss.modules()):
            raise InputError(f"S2SD: loss must be a loss other than S2SD, not {shown(loss)}")
        check_list("S2SD: dims", dims, "dimensions, one per head")
        dims = list(dims)
        if not dims or not all(is_integer(dim) and 1 <= dim <= MAX_DIM for dim in dims):
            raise InputError(f"S2SD: dims = {shown(dims)} must be whole numbers from 1 to {MAX_DIM:,}, at least one")
        check_positive_integer(self, **given(in_features=in_features))
        check_positive(self, temperature=temperature)
        check_nonnegative(self, weight=weight, feature_weight=feature_weight)
        check_nonnegative_integer(self, feature_warmup=feature_warmup)
        self.loss, self.dims, self.in_features, self.temperature = loss, dims, in_features, temperature
        self.weight, self.feature_weight, self.feature_warmup = weight, feature_weight, feature_warmup
        self.calls = 0
        self.heads, self.head_losses = nn.ModuleList(), nn.ModuleList()
        if in_features is not None:
            self.create_heads(in_features)

    def create_heads(self, in_features: int) -> None:
        """Create the heads and their losses, with random weights from the global generator.

        Raises:
            InputError: the loss was constructed with another number.
        """
        if self.in_features not in (None, in_features):
            raise InputError(f"S2SD: in_features = {self.in_features} does not fit; it must be {in_features}")
        self.in_features = in_features
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(in_features, dim), nn.ReLU(), nn.Linear(dim, dim)) for dim in self.dims
        )
        self.head_losses = nn.ModuleList(_loss_of_head(self.loss, dim) for dim in self.dims)

    def parts(self, source: PairSource) -> dict[str, Tensor]:
        features = self._features(source)
        self._check_device(features.device)
        parts = {name: value / 2 for name, value in self.loss.parts(source).items()}
        with torch.autocast(features.device.type, enabled=False), ieee_products(features.device):
            targets = [source.with_embeddings(head(features)) for head in self.heads]
        for target, loss in zip(targets, self.head_losses, strict=True):
            for name, value in cast(Loss, loss).parts(target).items():
                key = f"{name} (heads)"
                parts[key] = parts.get(key, 0) + value / (2 * len(targets))
        with torch.autocast(features.device.type, enabled=False), ieee_products(features.device):
            distilled = self.weight * distillation(source, targets, self.temperature)
            parts["distillation"] = distilled
            parts["feature distillation"] = self._from_features(source, features)
        return parts

    def _from_features(self, source: PairSource, features: Tensor) -> Tensor:
        is_warm = self.calls >= self.feature_warmup
        if self.training:
            self.calls = min(self.calls + 1, self.feature_warmup)
        if not (is_warm and self.feature_weight):
            return zero_loss(source)
        target = source.with_embeddings(features.detach())
        return self.feature_weight * distillation(source, [target], self.temperature)

    def _features(self, source: PairSource) -> Tensor:
        if source.has_own_references:
            raise InputError("S2SD: references have no features; give embeddings and labels alone")
        if not self.heads:
            raise InputError("S2SD: in_features is missing; only a recipe of `vicinal train` can omit it")
        if source.features is None:
            raise InputError("S2SD: the features that the embeddings were computed from are missing; give features=")
        if source.features.shape[1] != self.in_features:
            raise InputError(f"S2SD: features have {source.features.shape[1]} dimensions, not {self.in_features}")
        return at_least_float32(source.features).to(cast(Tensor, next(self.heads.parameters())).dtype)

    def get_extra_state(self) -> dict[str, Any]:
        """The number of calls, as part of `state_dict`."""
        return {"calls": self.calls}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the number of calls from a state."""
        self.calls = state["calls"]


def _loss_of_head(loss: Loss, dim: int) -> Loss:
    """A copy of a loss; with class centers, these have the dimension of the head."""
    copy = deepcopy(loss)
    for part in copy.modules():
        if isinstance(part, CenterBasedLoss):
            part.dim = None
            if part.num_classes is not None:
                part.create_centers(part.num_classes, dim)
    return copy


@torch.compiler.disable  # type: ignore[untyped-decorator]  # a loop over tiles
def distillation(source: PairSource, targets: Sequence[PairSource], temperature: float) -> Tensor:
    """The mean over anchors and targets of `temperature^2 KL(softmax(target / t) || softmax(source / t))`, a scalar.

    It is computed tile by tile and is differentiable once with respect to the source, not to the targets.

    Args:
        source: n anchors and c references.
        targets: the same anchors and references in other spaces.
        temperature: divides the similarities before the softmax.
    """
    if source.is_empty:
        return zero_loss(source)
    total = _SumOfDivergences.apply(source, targets, temperature, torch.is_grad_enabled(), *source.inputs)
    return cast(Tensor, total) / source.mean_num_anchors


class _SumOfDivergences(torch.autograd.Function):
    """Computes the gradient in forward and scales it in backward."""

    @staticmethod
    def forward(
        ctx: Any,
        source: PairSource,
        targets: Sequence[PairSource],
        temperature: float,
        grad_enabled: bool,
        *inputs: Tensor,
    ) -> Tensor:
        total, gradients = inputs[0].new_zeros(()), [torch.zeros_like(tensor) for tensor in inputs]
        step, n = default_tile_rows(source.num_references, source.anchors.device), len(source)
        for start in range(0, n, step):
            span = slice(start, min(start + step, n))
            log_p = (source.similarity(span) / temperature).log_softmax(dim=1)
            gradient = log_p.exp()
            for target in targets:
                log_q = (target.similarity(span) / temperature).log_softmax(dim=1)
                q = log_q.exp()
                gradient.sub_(q, alpha=1 / len(targets))
                total += log_q.sub_(log_p).mul_(q).sum() * (temperature**2 / len(targets))
            if grad_enabled and any(ctx.needs_input_grad):
                source.add_gradient(gradients, span, gradient.mul_(temperature))
        ctx.save_for_backward(*gradients)
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        return None, None, None, None, *(upstream[0] * gradient for gradient in ctx.saved_tensors)
