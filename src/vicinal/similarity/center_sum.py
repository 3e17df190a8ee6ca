"""Sums over anchors of functions of their similarities to class centers, with gradients, in little memory.

A center-based loss needs few numbers per anchor: its similarities to the centers of its own class, and log-sum-exp and
mean over the other classes. These are computed tile by tile, the loss gives its value and its gradient with respect to
them, and that is propagated to anchors and centers. A matrix of anchors x centers is never kept for the backward pass,
and a large one is not held at any time: its tiles are computed twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vicinal.similarity.class_centers import (
    CenterRows,
    CenterTiles,
    ClassCenters,
    RowValues,
    dense_center_rows,
    mask_own_class,
)
from vicinal.similarity.tiles import refuse_second_derivative
from vicinal.utils import distributed
from vicinal.utils.devices import ieee_products, tile_elements

MAX_KEPT, MAX_KEPT_TILES = 2**25, 4
"""Similarities of a block of anchors to all centers that are kept instead of computed a second time, or more if tiles
are large."""
MIN_ROWS, BLOCK_ROWS = 128, 384
"""Matrix products with fewer rows take longer per row; a block has more, as each block reads all centers."""
BOUNDED_SCALE = 40.0
"""Up to this scale no exponential of a cosine underflows when all are divided by the largest possible one."""


def sum_over_anchors(anchors: Tensor, labels: Tensor, centers: ClassCenters, row_values: RowValues) -> Tensor:
    """Sum the values that `row_values` computes over all anchors; differentiable once.

    Value and gradient equal those of the whole similarity matrix, to rounding. Where each process holds a shard of the
    centers, all of them must call this with the same anchors, and get the same sum. The gradient with respect to the
    anchors is then scaled so that, if they were gathered with :func:`vicinal.utils.distributed.gather`, its mean over
    processes is that of the whole.

    Args:
        anchors: float [n, d], L2-normalized unless the centers have a bias; float32 or float64.
        labels: int [n], from 0 to num_classes - 1.
        centers: class centers.
        row_values: the loss of each anchor.
    """
    parameters = centers.parameters(anchors.dtype)
    if torch.compiler.is_compiling():  # the compiler fuses the operations on the whole matrix
        return row_values(dense_center_rows(anchors, labels, centers, *parameters)).sum()
    if not torch.is_grad_enabled():
        return values_of_anchors(anchors, labels, centers, row_values).sum()
    return _SumOverAnchors.apply((labels, centers, row_values), anchors, *parameters)


@torch.no_grad()
def values_of_anchors(anchors: Tensor, labels: Tensor, centers: ClassCenters, row_values: RowValues) -> Tensor:
    """The values that :func:`sum_over_anchors` sums, [n], without gradient."""
    blocks = CenterBlocks(anchors, labels, centers, centers.parameters(anchors.dtype))
    values = []
    for block in blocks:
        others, _ = blocks.log_sum_of_others(block)
        rows = blocks.rows(block, block.anchors, blocks.own_centers(block), others, blocks.mean(block))
        values.append(row_values(rows))
    return torch.cat(values)


class _SumOverAnchors(torch.autograd.Function):
    """Computes the gradients in forward and returns them in backward, without a copy of the size of the centers."""

    @staticmethod
    def forward(
        ctx: Any, inputs: tuple[Tensor, ClassCenters, RowValues], anchors: Tensor, *parameters: Tensor
    ) -> Tensor:
        labels, centers, row_values = inputs
        needs_grad, learns_centers = any(ctx.needs_input_grad), ctx.needs_input_grad[2]
        # Saved so that torch raises if one is changed before backward. Centers that do not learn may change.
        ctx.save_for_backward(anchors, *(parameters if learns_centers else ()))
        if not needs_grad:
            return values_of_anchors(anchors, labels, centers, row_values).sum()
        ctx.backward_pass = _BackwardPass(CenterBlocks(anchors, labels, centers, parameters), row_values)
        ctx.gradients = ctx.backward_pass.gradients(learns_centers)
        # A copy: autograd ties the returned tensor to `ctx`, which would then hold itself and stay in memory.
        return ctx.backward_pass.total.clone()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        _ = ctx.saved_tensors
        gradients = ctx.gradients
        if not ctx.needs_input_grad[2]:
            return None, *(None if gradient is None else gradient * upstream[0] for gradient in gradients)
        # The caller may overwrite them; a second backward pass through the same graph computes them again.
        with torch.autocast(upstream[0].device.type, enabled=False), ieee_products(upstream[0].device):
            ctx.gradients, gradients = None, gradients or ctx.backward_pass.gradients(grad_centers=True)
        return None, *(gradient.mul_(upstream[0]) for gradient in gradients)


class _BackwardPass:
    """The sum over all anchors and its gradient, block by block; each block reads the centers twice.

    Attributes:
        total: the sum, once :meth:`gradients` was called.
    """

    def __init__(self, blocks: CenterBlocks, row_values: RowValues) -> None:
        self.blocks, self.centers, self.row_values = blocks, blocks.centers, row_values

    def gradients(self, grad_centers: bool) -> list[Tensor | None]:
        """The gradients with respect to anchors, centers (None unless asked for) and, where there is one, bias."""
        blocks = self.blocks
        self.total = blocks.anchors.new_zeros(())
        self.grad_anchors = torch.empty_like(blocks.anchors)
        self.grad_vectors = torch.empty_like(blocks.vectors) if grad_centers else None
        self.grad_bias = None if blocks.bias is None else torch.zeros_like(blocks.bias)
        self.grad_own: list[tuple[Block, list[Tensor]]] = []
        for block in blocks:
            self._add_block(block)
        for block, grad_own in self.grad_own:  # last: `normalize_backward` in the last block is not for these
            if self.grad_vectors is not None:
                self.grad_vectors.index_add_(0, blocks.own_columns(block), grad_own[0])
            if self.grad_bias is not None:
                self.grad_bias.index_add_(0, block.class_index, grad_own[1])
        if self.centers.is_sharded:
            self.grad_anchors *= distributed.world_size()
        gradients = [self.grad_anchors, self.grad_vectors, *([] if self.grad_bias is None else [self.grad_bias])]
        # If they were kept here too, autograd would copy them.
        del self.grad_anchors, self.grad_vectors, self.grad_bias, self.grad_own
        return gradients

    def _add_block(self, block: Block) -> None:
        others, kept_tiles = self.blocks.log_sum_of_others(block, self.blocks.keep_tiles)
        grad_others, grad_mean = self._add_values(block, others)
        # Without another class nothing depends on `others`, and its infinity would leave NaN.
        grad_others = torch.where(others > -math.inf, self.centers.scale * grad_others, 0.0)
        finite = others.masked_fill(others == -math.inf, 0.0)
        grad_anchors = self.grad_anchors[block.span]
        if self.centers.needs_mean:
            grad_mean = grad_mean * (self.centers.scale / self.centers.num_classes)
            grad_anchors.addmm_(grad_mean[:, None], self.blocks.tiles.sum[None])
        for i, span in enumerate(self.blocks.tiles):
            units = self.blocks.tiles.units(span)
            tile = kept_tiles[i] if kept_tiles else self.blocks.tile(block, span, units)
            weights = grad_others * (tile.shift - finite).exp()
            grad_anchors.addcmul_(weights[:, None], tile.exponentials @ units)
            if self.grad_bias is not None:
                self.grad_bias[span] += weights @ tile.exponentials + grad_mean.sum()
            if self.grad_vectors is not None:
                gradient = self.grad_vectors[span]
                is_first = block.span.start == 0
                gradient.addmm_(tile.exponentials.T, block.anchors * weights[:, None], beta=0 if is_first else 1)
                if self.centers.needs_mean:
                    gradient += grad_mean @ block.anchors
                if block.span.stop == len(self.blocks.anchors):  # the last block: while the tile is in the cache
                    self.blocks.tiles.normalize_backward(gradient, units, span)

    def _add_values(self, block: Block, others: Tensor) -> tuple[Tensor, Tensor]:
        """Add a block's values and their gradient through own classes; return the gradients of `others` and `mean`."""
        tensors = [block.anchors, others, self.blocks.mean(block), *self.blocks.own_centers(block)]
        inputs = [tensor.detach().requires_grad_() for tensor in tensors]
        with torch.enable_grad():
            anchors, others, mean, *own = inputs
            value = self.row_values(self.blocks.rows(block, anchors, own, others, mean)).sum()
        self.total = self.total + value.detach()
        grad_anchors, grad_others, grad_mean, *grad_own = torch.autograd.grad(
            value, inputs, allow_unused=True, materialize_grads=True
        )
        self.grad_anchors[block.span] = grad_anchors
        self.grad_own.append((block, grad_own))
        return grad_others, grad_mean


class Block(NamedTuple):
    """Some anchors of a batch.

    Attributes:
        span: their rows in the batch.
        anchors: float [rows, d].
        class_index: int [rows], the index of each anchor's class among the classes held here.
        is_local: bool [rows], whether that class is held here.
    """

    span: slice
    anchors: Tensor
    class_index: Tensor
    is_local: Tensor


class CenterTile(NamedTuple):
    """Statistics of a block of anchors over a tile of centers.

    Attributes:
        exponentials: float [rows, centers], the derivative of their sum over classes with respect to similarities,
            divided by the scale.
        shift: float [rows], the numbers that were subtracted from the logits.
        log_sum: float [rows], log-sum-exp over the classes of the tile.
    """

    exponentials: Tensor
    shift: Tensor
    log_sum: Tensor


class CenterBlocks:
    """The :class:`CenterRows` of a batch, block by block, from class centers that are read tile by tile.

    Args:
        anchors: float [n, d].
        labels: int [n].
        centers: class centers.
        parameters: `centers.parameters`, in the dtype of the computation.
    """

    def __init__(self, anchors: Tensor, labels: Tensor, centers: ClassCenters, parameters: Sequence[Tensor]) -> None:
        self.anchors, self.labels, self.centers = anchors.detach(), labels, centers
        self.vectors, self.bias = parameters[0].detach(), parameters[1].detach() if len(parameters) > 1 else None
        columns, elements = centers.max_centers, tile_elements(anchors.device)
        max_kept = max(MAX_KEPT, MAX_KEPT_TILES * elements)
        # With few anchors and many centers no tile is kept, and one block holds all anchors, as each reads all centers.
        self.keep_tiles = columns * min(len(anchors), MIN_ROWS) <= max_kept
        rows = min(max(BLOCK_ROWS, elements // columns), max(MIN_ROWS, max_kept // columns))
        self.block_rows = rows if self.keep_tiles else len(anchors)
        width = max(min(self.block_rows, len(anchors)), anchors.shape[1])
        size = max(1, elements // width // centers.centers_per_class) * centers.centers_per_class
        self.tiles = CenterTiles(self.vectors, self.bias is None, size, centers.needs_mean)
        # Bounded logits can be shifted by their bound instead of their maximum.
        self.bounded = self.bias is None and centers.scale <= BOUNDED_SCALE

    def __iter__(self) -> Iterator[Block]:
        for start in range(0, len(self.anchors), self.block_rows):
            span = slice(start, min(start + self.block_rows, len(self.anchors)))
            yield Block(span, self.anchors[span], *self.centers.locate(self.labels[span]))

    def log_sum_of_others(self, block: Block, keep_tiles: bool = False) -> tuple[Tensor, list[CenterTile]]:
        """Log-sum-exp over all classes except the anchor's own, [rows], and the tiles, if they are kept."""
        others, kept = block.anchors.new_full((len(block.anchors),), -math.inf), []
        for span in self.tiles:
            tile = self.tile(block, span, self.tiles.units(span))
            others = torch.logaddexp(others, tile.log_sum)
            if keep_tiles:
                kept.append(tile)
        return distributed.all_reduce_logsumexp(others) if self.centers.is_sharded else others, kept

    def tile(self, block: Block, span: slice, units: Tensor) -> CenterTile:
        """The statistics of a block over the tile of these normalized centers."""
        k = self.centers.centers_per_class
        logits = self.centers.scale * block.anchors @ units.T
        if self.bias is not None:
            logits += self.centers.scale * self.bias[span]
        slopes = None
        if k > 1:
            logits, slopes = self._class_logits(logits)
        mask_own_class(logits, block.class_index - span.start // k, block.is_local)
        if self.bounded:
            shift = logits.new_full((len(logits),), self.centers.scale)
        else:
            shift = logits.amax(dim=1).clamp_min_(torch.finfo(logits.dtype).min)
        exponentials = logits.sub_(shift[:, None]).exp_()
        log_sum = exponentials.sum(dim=1).log_().add_(shift)
        if slopes is not None:
            exponentials = slopes.mul_(exponentials).permute(1, 2, 0).flatten(1)
        return CenterTile(exponentials, shift, log_sum)

    def _class_logits(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The logit of each class, [rows, classes], from those of its centers, [rows, classes x k]; its derivatives,
        [k, rows, classes].
        """
        temperature = self.centers.scale * self.centers.temperature
        # Sums over the first dimension are vectorized; those over a last one of few numbers are several times slower.
        logits = logits.view(len(logits), -1, self.centers.centers_per_class).permute(2, 0, 1).contiguous()
        weights = logits.div_(temperature).softmax(dim=0)
        class_logits = (weights * logits).sum(dim=0)
        slopes = logits.add_(1 - class_logits).mul_(weights)
        return class_logits.mul_(temperature), slopes

    def own_columns(self, block: Block) -> Tensor:
        """The indices of the centers of each anchor's class, [rows x centers_per_class]."""
        k = self.centers.centers_per_class
        return (block.class_index[:, None] * k + torch.arange(k, device=block.class_index.device)).flatten()

    def own_centers(self, block: Block) -> list[Tensor]:
        """The centers of each anchor's class, [rows x centers_per_class, d], and the bias, if any, [rows]."""
        centers = self.vectors[self.own_columns(block)]
        return [centers] if self.bias is None else [centers, self.bias[block.class_index]]

    def mean(self, block: Block) -> Tensor:
        """The mean over all classes of scale x similarity, [rows]; 0 if it is not needed."""
        if not self.centers.needs_mean:
            return torch.zeros_like(block.anchors[:, 0])
        total = block.anchors @ self.tiles.sum
        total = total if self.bias is None else total + self.bias.sum()
        if self.centers.is_sharded:
            total = distributed.all_reduce_sum(total)
        return self.centers.scale / self.centers.num_classes * total

    def rows(self, block: Block, anchors: Tensor, own: list[Tensor], others: Tensor, mean: Tensor) -> CenterRows:
        """The rows of a block from the anchors, the centers of their classes, and the statistics over all classes."""
        similarity = self.centers.own_similarity(anchors, own[0], own[1] if len(own) > 1 else None)
        if self.centers.is_sharded:  # the process that holds the class gives the value and gets the gradient
            similarity = torch.where(block.is_local[:, None], similarity, 0.0)
            similarity = similarity + (distributed.all_reduce_sum(similarity.detach()) - similarity.detach())
        return CenterRows(similarity, others, mean, self.centers.num_classes)
