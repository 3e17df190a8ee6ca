"""Proxy Anchor: class centers as anchors that are compared with all samples of the batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vicinal.losses.center_based import CenterBasedLoss
from vicinal.losses.row_functions import log_one_plus_sum_exp, softplus
from vicinal.similarity.class_centers import CenterTiles, mask_own_class
from vicinal.similarity.embeddings import normalize
from vicinal.similarity.pair_source import PairSource
from vicinal.similarity.rows import Rows
from vicinal.similarity.tiles import refuse_second_derivative
from vicinal.utils import distributed
from vicinal.utils.arguments import check_finite, check_positive
from vicinal.utils.devices import ieee_products, tile_elements


class ProxyAnchorLoss(CenterBasedLoss):
    """Proxy Anchor loss,

        1/|P+| sum_{p in P+} log(1 + sum_{x in p} exp(-alpha (cos(x, c_p) - margin)))
          + 1/|P| sum_{p in P} log(1 + sum_{x not in p} exp(alpha (cos(x, c_p) + margin)))

    where P are all classes and P+ those of the batch, and the inner sums are over the samples x of the batch.

    In distributed training each process compares the samples of all processes with the centers of some classes.

    Reference: Kim et al., "Proxy Anchor Loss for Deep Metric Learning", CVPR 2020, Eq. (4), with its values.

    Args:
        num_classes: number of classes of the training set; None: the trainer of a recipe sets it.
        dim: dimension of the embeddings; None: the trainer of a recipe sets it.
        alpha: positive factor of the similarities.
        margin: the paper's delta.

    Raises:
        InputError: an argument is out of range; see also :class:`~vicinal.losses.center_based.CenterBasedLoss`.

    Example:
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

    def mean_value(self, source: PairSource) -> Tensor:
        batch = source.references_as_batch()
        anchors, labels = batch.anchors, self._labels(batch).long()
        centers = self._require_centers().to(anchors.dtype)
        if torch.compiler.is_compiling():
            units = normalize(centers)
            own = torch.linalg.vecdot(anchors, units[labels])
            logits = self.alpha * (anchors @ units.T + self.margin)
            logits = logits.scatter(1, labels[:, None], -math.inf)
            return self.positive_term(own, labels) + softplus(logits.logsumexp(dim=0)).mean()
        classes = distributed.own_rows(len(centers)) if source.is_distributed else slice(0, len(centers))
        if torch.is_grad_enabled():
            return _ProxyAnchor.apply(self, labels, anchors, centers, classes)
        return _Pass(self, labels, anchors, centers, classes).total

    def positive_term(self, own: Tensor, labels: Tensor) -> Tensor:
        """The first of the two terms, from the similarities of samples to the centers of their classes, [n]."""
        assert self.num_classes is not None
        exponents = -self.alpha * (own - self.margin)
        zeros = own.new_zeros(self.num_classes)
        # The 1 in the logarithm is the exponential of 0, so the largest exponent is at least 0.
        largest = zeros.scatter_reduce(0, labels, exponents.detach(), "amax")
        sums = zeros.index_add(0, labels, (exponents - largest[labels]).exp())
        present = zeros.index_add(0, labels, torch.ones_like(own)) > 0
        return ((sums + (-largest).exp()).log() + largest).sum() / present.sum()

    def center_rows(self, source: PairSource) -> PairSource:
        """The centers of the batch's classes as anchors, which are compared with the batch, with gradients of both."""
        batch = self._check_source(source).references_as_batch()
        labels = self._labels(batch).long()
        classes = labels.unique()  # type: ignore[no-untyped-call]
        centers = normalize(self._require_centers().to(batch.anchors.dtype)[classes])
        return PairSource(centers, batch.anchors, classes, labels, offset=None, num_calls=source.num_calls)

    def row_terms(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """The two logarithms of each center, of pairs that may have weights, [rows] each."""
        positives = log_one_plus_sum_exp(rows.positives, -self.alpha, self.margin, rows.positive_weights)
        return positives, log_one_plus_sum_exp(rows.negatives, self.alpha, -self.margin, rows.negative_weights)

    def reduce(self, sums: Sequence[Tensor], centers: PairSource) -> Tensor:
        """The loss from the sums of :meth:`row_terms` over the centers of :meth:`center_rows`; others have no pairs."""
        assert self.num_classes is not None
        return sums[0] / len(centers) + sums[1] / self.num_classes


class _ProxyAnchor(torch.autograd.Function):
    """Computes the gradients in forward and returns them in backward."""

    @staticmethod
    def forward(
        ctx: Any, loss: ProxyAnchorLoss, labels: Tensor, anchors: Tensor, centers: Tensor, classes: slice
    ) -> Tensor:
        ctx.loss, ctx.labels, ctx.classes = loss, labels, classes
        grad_centers = ctx.needs_input_grad[3] if any(ctx.needs_input_grad) else None
        result = _Pass(loss, labels, anchors, centers, classes, grad_centers)
        ctx.gradients = result.gradients
        ctx.save_for_backward(anchors, centers)
        return result.total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        anchors, centers = ctx.saved_tensors
        with torch.autocast(upstream[0].device.type, enabled=False), ieee_products(upstream[0].device):
            gradients, ctx.gradients = ctx.gradients, None
            if gradients is None:  # a second backward pass through the same graph
                grad_centers = ctx.needs_input_grad[3]
                gradients = _Pass(ctx.loss, ctx.labels, anchors, centers, ctx.classes, grad_centers).gradients
        assert gradients is not None
        return None, None, *(None if gradient is None else gradient.mul_(upstream[0]) for gradient in gradients), None


class _Pass:
    """One pass over the centers in tiles, each compared with all samples, which computes `total` and `gradients`.

    Each of several processes computes the second term for some classes, times the number of processes, and the first
    one for all: the mean over processes is then the loss. `grad_centers`: whether the gradient includes that of the
    centers; None: no gradient is computed.
    """

    def __init__(
        self,
        loss: ProxyAnchorLoss,
        labels: Tensor,
        anchors: Tensor,
        centers: Tensor,
        classes: slice,
        grad_centers: bool | None = None,
    ) -> None:
        self.loss, self.labels, self.anchors, centers = loss, labels, anchors.detach(), centers.detach()
        self.classes, is_whole = classes, classes == slice(0, len(centers))
        self.scale = (1 if is_whole else distributed.world_size()) / len(centers)
        size = max(1, tile_elements(anchors.device) // max(anchors.shape))
        self.tiles = CenterTiles(centers[classes], normalized=True, size=size)
        self.grad_anchors = None if grad_centers is None else torch.zeros_like(self.anchors)
        self.grad_centers = torch.zeros_like(centers) if grad_centers else None
        with torch.no_grad():
            negative_sum = sum((self._negative_term(span) for span in self.tiles), start=anchors.new_zeros(()))
        self.total = negative_sum * self.scale + self._positive_term(centers)
        self.gradients = None if grad_centers is None else (self.grad_anchors, self.grad_centers)

    def _negative_term(self, span: slice) -> Tensor:
        """The second term summed over the centers of a tile; adds its gradient."""
        units, alpha = self.tiles.units(span), self.loss.alpha
        logits = alpha * (self.anchors @ units.T + self.loss.margin)
        first = self.classes.start + span.start
        mask_own_class(logits, self.labels - first, torch.ones_like(self.labels, dtype=torch.bool))
        shift = logits.amax(dim=0).clamp_min_(torch.finfo(logits.dtype).min)
        exponentials = logits.sub_(shift).exp_()
        sums = exponentials.sum(dim=0)
        log_sums = sums.log() + shift
        if self.grad_anchors is not None:
            # The derivative of log(1 + sum) with respect to an exponential.
            weights = alpha * self.scale * log_sums.sigmoid() / sums.clamp_min(1e-30)
            self.grad_anchors.addmm_(exponentials, units * weights[:, None])
            if self.grad_centers is not None:
                gradient = self.grad_centers[first : first + len(units)]
                torch.mm(exponentials.T, self.anchors, out=gradient).mul_(weights[:, None])
                self.tiles.normalize_backward(gradient, units, span)
        return softplus(log_sums).sum()

    def _positive_term(self, centers: Tensor) -> Tensor:
        """The first term; adds its gradient."""
        needs_grad = self.grad_anchors is not None
        anchors, own = (x.detach().requires_grad_(needs_grad) for x in (self.anchors, centers[self.labels]))
        with torch.set_grad_enabled(needs_grad):
            value = self.loss.positive_term(torch.linalg.vecdot(anchors, normalize(own)), self.labels)
        if self.grad_anchors is not None:
            grad_anchors, grad_own = torch.autograd.grad(value, (anchors, own))
            self.grad_anchors += grad_anchors
            if self.grad_centers is not None:
                self.grad_centers.index_add_(0, self.labels, grad_own)
        return value.detach()
