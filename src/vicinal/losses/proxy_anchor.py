"""Proxy Anchor: class centers as anchors, against all samples of the batch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from vicinal.arguments import check_finite, check_positive
from vicinal.center_tiles import TILE_ELEMENTS, CenterTiles, leave_out
from vicinal.losses.centers import CenterBasedLoss
from vicinal.losses.row_functions import softplus
from vicinal.similarity import Source, normalize
from vicinal.tiles import refuse_second_derivative


class ProxyAnchorLoss(CenterBasedLoss):
    """Proxy Anchor loss,

        1/|P+| sum_{p in P+} log(1 + sum_{x in p} exp(-alpha (cos(x, c_p) - margin)))
          + 1/|P| sum_{p in P} log(1 + sum_{x not in p} exp(alpha (cos(x, c_p) + margin)))

    over all classes P and those of the batch, P+, the sums over the samples x of the batch.

    Over several processes each of them compares the samples of all with all centers.

    Reference: Kim et al., "Proxy Anchor Loss for Deep Metric Learning", CVPR 2020, Eq. (4), with its values.

    Args:
        num_classes: classes of the training set; None: a recipe's trainer says.
        dim: dimension of the embeddings; None: a recipe's trainer says.
        alpha: factor of the similarities, positive.
        margin: the paper's delta.

    Raises:
        InputError: an argument is impossible; when called, as :class:`~vicinal.losses.centers.CenterBasedLoss`.

    Example:
        >>> import torch
        >>> from vicinal.losses import ProxyAnchorLoss
        >>> loss = ProxyAnchorLoss(num_classes=2, dim=2)
        >>> loss.set_centers(torch.tensor([0, 1]), torch.eye(2))
        >>> loss(torch.tensor([[0.6, 0.8]]), torch.tensor([1])).detach()
        tensor(11.2000)
    """

    def __init__(
        self, num_classes: int | None = None, dim: int | None = None, alpha: float = 32.0, margin: float = 0.1
    ) -> None:
        super().__init__(num_classes, dim)
        check_positive(self, alpha=alpha)
        check_finite(self, margin=margin)
        self.alpha, self.margin = alpha, margin

    def value(self, source: Source) -> Tensor:
        batch = source.among_references()
        assert batch.labels is not None
        anchors, labels = batch.anchors, batch.labels.long()
        centers = self._created().to(anchors.dtype)
        if torch.compiler.is_compiling():
            units = normalize(centers)
            own = torch.linalg.vecdot(anchors, units[labels])
            exponents = self.alpha * (anchors @ units.T + self.margin)
            exponents = exponents.scatter(1, labels[:, None], -math.inf)
            return self._of_own(own, labels) + softplus(exponents.logsumexp(dim=0)).mean()
        if torch.is_grad_enabled():
            return _ProxyAnchor.apply(self, labels, anchors, centers)
        return _Pass(self, labels, anchors, centers).total

    def _of_own(self, own: Tensor, labels: Tensor) -> Tensor:
        """The first half, from the similarities of samples to the centers of their classes, [n]."""
        assert self.num_classes is not None
        exponents = -self.alpha * (own - self.margin)
        none = own.new_zeros(self.num_classes)
        # The 1 in the logarithm is an exponential of 0, which is why the largest exponent is 0 at least.
        largest = none.scatter_reduce(0, labels, exponents.detach(), "amax")
        sums = none.index_add(0, labels, (exponents - largest[labels]).exp())
        present = none.index_add(0, labels, torch.ones_like(own)) > 0
        return ((sums + (-largest).exp()).log() + largest).sum() / present.sum()


class _ProxyAnchor(torch.autograd.Function):
    """The gradients are formed in forward and handed over in backward."""

    @staticmethod
    def forward(ctx: Any, loss: ProxyAnchorLoss, labels: Tensor, anchors: Tensor, centers: Tensor) -> Tensor:
        ctx.loss, ctx.labels = loss, labels
        done = _Pass(loss, labels, anchors, centers, ctx.needs_input_grad[3] if any(ctx.needs_input_grad) else None)
        ctx.gradients = done.gradients
        ctx.save_for_backward(anchors, centers)
        return done.total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        anchors, centers = ctx.saved_tensors
        with torch.autocast(upstream[0].device.type, enabled=False):
            gradients, ctx.gradients = ctx.gradients, None
            if gradients is None:  # a second pass over the same graph
                gradients = _Pass(ctx.loss, ctx.labels, anchors, centers, ctx.needs_input_grad[3]).gradients
        assert gradients is not None
        return None, None, *(None if gradient is None else gradient.mul_(upstream[0]) for gradient in gradients)


class _Pass:
    """One pass over the centers in tiles, each with all samples: the value, and with it the gradient.

    Attributes:
        total: the loss.
        gradients: by anchors and centers; None unless wanted.
    """

    def __init__(
        self, loss: ProxyAnchorLoss, labels: Tensor, anchors: Tensor, centers: Tensor, by_centers: bool | None = None
    ) -> None:
        self.loss, self.labels, self.anchors, centers = loss, labels, anchors.detach(), centers.detach()
        size = max(1, TILE_ELEMENTS // max(anchors.shape))
        self.tiles = CenterTiles(centers, normalized=True, size=size)
        self.by_anchors = None if by_centers is None else torch.zeros_like(self.anchors)
        self.by_centers = torch.empty_like(centers) if by_centers else None
        with torch.no_grad():
            others = sum((self._of_tile(span) for span in self.tiles), start=anchors.new_zeros(()))
        self.total = others / len(centers) + self._of_own(centers)
        self.gradients = None if by_centers is None else (self.by_anchors, self.by_centers)

    def _of_tile(self, span: slice) -> Tensor:
        """The sum over the centers of a tile of the second half; its gradient is added."""
        units, alpha = self.tiles.units(span), self.loss.alpha
        exponents = alpha * (self.anchors @ units.T + self.loss.margin)
        leave_out(exponents, self.labels - span.start, torch.ones_like(self.labels, dtype=torch.bool))
        shift = exponents.amax(dim=0).clamp_min_(torch.finfo(exponents.dtype).min)
        exponentials = exponents.sub_(shift).exp_()
        sums = exponentials.sum(dim=0)
        log_sums = sums.log() + shift
        if self.by_anchors is not None:
            # Of log(1 + sum), through the sum.
            weights = alpha / self.tiles.vectors.shape[0] * log_sums.sigmoid() / sums.clamp_min(1e-30)
            self.by_anchors.addmm_(exponentials, units * weights[:, None])
            if self.by_centers is not None:
                gradient = self.by_centers[span]
                torch.mm(exponentials.T, self.anchors, out=gradient).mul_(weights[:, None])
                self.tiles.by_vectors(gradient, units, span)
        return softplus(log_sums).sum()

    def _of_own(self, centers: Tensor) -> Tensor:
        wanted = self.by_anchors is not None
        anchors, own = (x.detach().requires_grad_(wanted) for x in (self.anchors, centers[self.labels]))
        with torch.set_grad_enabled(wanted):
            value = self.loss._of_own(torch.linalg.vecdot(anchors, normalize(own)), self.labels)
        if self.by_anchors is not None:
            by_anchors, by_own = torch.autograd.grad(value, (anchors, own))
            self.by_anchors += by_anchors
            if self.by_centers is not None:
                self.by_centers.index_add_(0, self.labels, by_own)
        return value.detach()
