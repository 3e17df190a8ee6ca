"""Sums over anchors of functions of their similarities to class centers, with gradients, in little memory.

A center-based loss needs few numbers per anchor: its similarities to the centers of its own class, and log-sum-exp and
mean over the other classes. These are computed tile by tile, the loss gives its value and its gradient with respect to
them, and that is propagated to anchors and centers. A matrix of anchors x centers is never kept for the backward pass,
and a large one is not held at any time: its tiles are computed twice.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from vicinal.similarity.center_blocks import Block, CenterBlocks
from vicinal.similarity.class_centers import ClassCenters, RowValues, dense_center_rows
from vicinal.similarity.tiles import refuse_second_derivative
from vicinal.utils import distributed
from vicinal.utils.ieee_products import ieee_products


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
    def forward(ctx: Any, of: tuple[Tensor, ClassCenters, RowValues], anchors: Tensor, *parameters: Tensor) -> Tensor:
        labels, centers, row_values = of
        needs_grad, learns_centers = any(ctx.needs_input_grad), ctx.needs_input_grad[2]
        # Saved so that torch raises if one is changed before backward. Centers that do not learn may change.
        ctx.save_for_backward(anchors, *(parameters if learns_centers else ()))
        if not needs_grad:
            return values_of_anchors(anchors, labels, centers, row_values).sum()
        ctx.backward_pass = _BackwardPass(CenterBlocks(anchors, labels, centers, parameters), row_values)
        ctx.gradients = ctx.backward_pass.gradients(learns_centers)
        # A copy: autograd ties what is returned to `ctx`, which would then hold itself and stay in memory.
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
        self._add_own()
        if self.centers.is_sharded:
            self.grad_anchors *= distributed.world_size()
        gradients = [self.grad_anchors, self.grad_vectors, *([] if self.grad_bias is None else [self.grad_bias])]
        # If they were kept here too, autograd would copy them.
        del self.grad_anchors, self.grad_vectors, self.grad_bias
        return gradients

    def _add_block(self, block: Block) -> None:
        others, kept = self.blocks.log_sum_of_others(block, self.blocks.keep_tiles)
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
            tile = kept[i] if kept else self.blocks.tile(block, span, units)
            weights = grad_others * (tile.shift - finite).exp()
            grad_anchors.addcmul_(weights[:, None], tile.exponentials @ units)
            if self.grad_bias is not None:
                self.grad_bias[span] += weights @ tile.exponentials + grad_mean.sum()
            if self.grad_vectors is not None:
                self._add_vectors(block, span, units, weights, tile.exponentials, grad_mean)

    def _add_values(self, block: Block, others: Tensor) -> tuple[Tensor, Tensor]:
        """Add a block's values, and their gradient through the anchors' own classes; return that by others and mean."""
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

    def _add_own(self) -> None:
        """Add the gradients of own centers: last, as these need no `normalize_backward`, which the last block does."""
        for block, grad_own in self.grad_own:
            if self.grad_vectors is not None:
                self.grad_vectors.index_add_(0, self.blocks.own_columns(block), grad_own[0])
            if self.grad_bias is not None:
                self.grad_bias.index_add_(0, block.class_index, grad_own[1])
        self.grad_own.clear()

    def _add_vectors(
        self, block: Block, span: slice, units: Tensor, weights: Tensor, exponentials: Tensor, grad_mean: Tensor
    ) -> None:
        """Add the gradient with respect to the centers of a tile."""
        assert self.grad_vectors is not None
        gradient = self.grad_vectors[span]
        is_first, is_last = block.span.start == 0, block.span.stop == len(self.blocks.anchors)
        gradient.addmm_(exponentials.T, block.anchors * weights[:, None], beta=0 if is_first else 1)
        if self.centers.needs_mean:
            gradient += grad_mean @ block.anchors
        if is_last:  # while the tile is in the cache
            self.blocks.tiles.normalize_backward(gradient, units, span)
