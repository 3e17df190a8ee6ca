"""Softmax statistics of anchors over all classes, block by block of anchors and tile by tile of centers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vicinal.similarity.center_tiles import CenterTiles, mask_own_class
from vicinal.similarity.class_centers import CenterRows, ClassCenters
from vicinal.utils import distributed
from vicinal.utils.tile_size import tile_elements

MAX_KEPT, MAX_KEPT_TILES = 2**25, 4
"""Similarities of a block of anchors to all centers that are kept instead of computed a second time, or more if tiles
are large."""
MIN_ROWS, BLOCK_ROWS = 128, 384
"""Matrix products with fewer rows take longer per row; a block has more, as each block reads all centers."""
BOUNDED_SCALE = 40.0
"""Up to this scale no exponential of a cosine underflows when all are divided by the largest possible one."""


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
        shift: float [rows], what was subtracted from the logits.
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
        parameters: `centers.parameters`, of the type that is computed in.
    """

    def __init__(self, anchors: Tensor, labels: Tensor, centers: ClassCenters, parameters: Sequence[Tensor]) -> None:
        self.anchors, self.labels, self.centers = anchors.detach(), labels, centers
        self.vectors, self.bias = parameters[0].detach(), parameters[1].detach() if len(parameters) > 1 else None
        columns, elements = centers.max_centers, tile_elements(anchors.device)
        max_kept = max(MAX_KEPT, MAX_KEPT_TILES * elements)
        # With few anchors and many centers nothing is kept, and there is one block, as each block reads all centers.
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
