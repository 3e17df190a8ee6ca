"""The walk over class centers, tile by tile: a softmax over any number of classes, and its gradient, in little memory.

What a loss of centers takes from the similarities of an anchor is small: those to the centers of its own class, the
logarithm of the sum of exponentials over all others, and their mean. The walk finds these, asks the loss for its value
and for its gradient by them, and carries that on to anchors and centers. A matrix anchors x centers is never kept for
the backward pass, and where it would be large not even for a moment: then its tiles are computed twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vicinal import distributed
from vicinal.similarity import SMALLEST_NORM, normalize
from vicinal.tiles import refuse_second_derivative

TILE_ELEMENTS = 2**20
"""Numbers of a tile: 4 MB in float32, which a processor's cache holds."""
BLOCK_ELEMENTS, MOST_KEPT = 2**20, 2**25
"""Similarities of a block of anchors to all centers, and how many are kept rather than computed a second time."""
FEWEST_ROWS, BLOCK_ROWS = 128, 384
"""Products of fewer rows are slower for each of them; of a block, for which all centers are gone over, more so."""
BOUNDED_SCALE = 40.0
"""Up to this scale no exponential of a cosine underflows when all are divided by the largest possible one."""


class CenterRows(NamedTuple):
    """What a loss of centers sees of some anchors.

    Attributes:
        own: float [rows, k], similarities to the centers of the anchor's class.
        others: float [rows], log-sum-exp over all other classes of scale x similarity; -inf where there is none.
        mean: float [rows], mean of scale x similarity over all classes; 0 unless it was asked for.
        classes: how many these are.
    """

    own: Tensor
    others: Tensor
    mean: Tensor
    classes: int


RowValues = Callable[[CenterRows], Tensor]
"""One value an anchor, [rows], differentiable."""


@dataclass(frozen=True)
class Centers:
    """Class centers, and how similar an anchor is to a class.

    Attributes:
        vectors: float [classes x per_class, d], in the order of classes; of a shard its own.
        scale: factor of the similarities in the exponentials.
        per_class: centers of a class.
        temperature: of the softmax that weighs several centers of a class.
        bias: float [classes], added to the products; then neither anchors nor centers are normalised.
        wants_mean: whether the loss needs `CenterRows.mean`, which takes one center a class.
        ids: int [classes], the labels of these classes, ascending; None: 0, 1, 2, ...
        classes_of_all: how many classes each process holds, the same on all of them; empty: all are here.
    """

    vectors: Tensor
    scale: float
    per_class: int = 1
    temperature: float = 1.0
    bias: Tensor | None = None
    wants_mean: bool = False
    ids: Tensor | None = None
    classes_of_all: tuple[int, ...] = ()

    @property
    def divided(self) -> bool:
        """Whether other processes hold centers of other classes."""
        return len(self.classes_of_all) > 0

    @property
    def classes(self) -> int:
        """Classes of all processes."""
        return sum(self.classes_of_all) or len(self.vectors) // self.per_class

    @property
    def most(self) -> int:
        """Centers of the process that holds most: what all processes agree on, as they go over anchors in step."""
        return max(self.classes_of_all, default=0) * self.per_class or len(self.vectors)

    def parameters(self, dtype: torch.dtype) -> list[Tensor]:
        """Vectors and, where there is one, bias, in the type that is computed in."""
        return [part.to(dtype) for part in (self.vectors, self.bias) if part is not None]

    def places(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Where the classes of labels are among these, and whether they are, both [rows]."""
        if self.ids is None:
            return labels.long(), torch.ones_like(labels, dtype=torch.bool)
        places = torch.searchsorted(self.ids, labels.long()).clamp_max(len(self.ids) - 1)
        return places, self.ids[places] == labels

    def own_similarity(self, anchors: Tensor, own: Tensor, bias: Tensor | None) -> Tensor:
        """Similarities [rows, per_class] to centers [rows x per_class, d], not normalised yet, and biases [rows]."""
        units = own if bias is not None else normalize(own)
        similarity = torch.linalg.vecdot(anchors[:, None], units.view(len(anchors), self.per_class, -1))
        return similarity if bias is None else similarity + bias[:, None]


def sum_over_anchors(anchors: Tensor, labels: Tensor, centers: Centers, row_values: RowValues) -> Tensor:
    """Sum over all anchors of the values that `row_values` gives them; differentiable once.

    Value and gradient are those of the whole matrix of similarities, to rounding. Where each process holds a shard of
    the centers, all of them must call this with the same anchors and get the same sum. The gradient by the anchors is
    then scaled so that, gathered with :func:`vicinal.distributed.gather`, its mean over processes is that of the whole.

    Args:
        anchors: float [n, d], L2-normalised unless the centers have a bias; float32 or float64.
        labels: int [n], from 0 to classes - 1.
        centers: what the anchors are compared with.
        row_values: the loss.
    """
    parameters = centers.parameters(anchors.dtype)
    if torch.compiler.is_compiling():  # a compiled graph fuses the whole matrix by itself
        return row_values(whole_rows(anchors, labels, centers, *parameters)).sum()
    if not torch.is_grad_enabled():
        return _Walk(anchors, labels, centers, parameters, row_values).values().sum()
    return _CenterSum.apply((labels, centers, row_values), anchors, *parameters)


def values_of_anchors(anchors: Tensor, labels: Tensor, centers: Centers, row_values: RowValues) -> Tensor:
    """The values that :func:`sum_over_anchors` sums, [n], without gradient."""
    return _Walk(anchors, labels, centers, centers.parameters(anchors.dtype), row_values).values()


def whole_rows(
    anchors: Tensor, labels: Tensor, centers: Centers, vectors: Tensor, bias: Tensor | None = None
) -> CenterRows:
    """The rows by plain operations on the whole matrix."""
    similarity = anchors @ (vectors if bias is not None else normalize(vectors)).T
    logits = centers.scale * (similarity if bias is None else similarity + bias)
    by_class = logits.view(len(logits), -1, centers.per_class)
    if centers.per_class > 1:
        weights = (by_class / (centers.scale * centers.temperature)).softmax(dim=2)
        logits = (weights * by_class).sum(dim=2)
    places, _ = centers.places(labels)
    own = torch.take_along_dim(by_class, places[:, None, None], dim=1)[:, 0] / centers.scale
    is_own = torch.arange(centers.classes, device=labels.device) == places[:, None]
    others = logits.masked_fill(is_own, -math.inf).logsumexp(dim=1)
    return CenterRows(own, others, logits.mean(dim=1), centers.classes)


class _CenterSum(torch.autograd.Function):
    """The gradients are formed in forward and handed over in backward: nothing as large as the centers is copied."""

    @staticmethod
    def forward(ctx: Any, of: tuple[Tensor, Centers, RowValues], anchors: Tensor, *parameters: Tensor) -> Tensor:
        labels, centers, row_values = of
        ctx.walk = _Walk(anchors, labels, centers, parameters, row_values)
        ctx.gradients = None
        if any(ctx.needs_input_grad):
            ctx.gradients = ctx.walk.gradients(by_centers=ctx.needs_input_grad[2])
        # So that torch raises if one is changed before backward. Centers that do not learn may change.
        ctx.save_for_backward(anchors, *(parameters if ctx.needs_input_grad[2] else ()))
        # A copy: autograd ties what is returned to the walk, which would then hold itself and stay in memory.
        return ctx.walk.total.clone() if ctx.gradients else ctx.walk.values().sum()

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        _ = ctx.saved_tensors
        gradients = ctx.gradients
        if not ctx.needs_input_grad[2]:
            return None, *(None if gradient is None else gradient * upstream[0] for gradient in gradients)
        # They belong to whoever gets them; a second pass over the same graph forms them anew.
        with torch.autocast(upstream[0].device.type, enabled=False):
            ctx.gradients, gradients = None, gradients or ctx.walk.gradients(by_centers=True)
        return None, *(gradient.mul_(upstream[0]) for gradient in gradients)


class CenterTiles:
    """Unit centers, tile by tile, and the way back: gradients by unit centers become gradients by centers.

    Args:
        vectors: float [centers, d].
        normalized: whether units are the L2-normalised vectors, or the vectors themselves.
        size: centers a tile.
        wants_sum: whether `sum` is needed.

    Attributes:
        sum: float [d], of all units, once every tile was visited.
    """

    def __init__(self, vectors: Tensor, normalized: bool, size: int, wants_sum: bool = False) -> None:
        self.vectors, self.normalized, self.size, self.wants_sum = vectors, normalized, size, wants_sum
        self.inverse_lengths = vectors.new_ones(len(vectors))
        self.sum = vectors.new_zeros(vectors.shape[1])
        self.visited = 0

    def __iter__(self) -> Iterator[slice]:
        for start in range(0, len(self.vectors), self.size):
            yield slice(start, min(start + self.size, len(self.vectors)))

    def units(self, span: slice) -> Tensor:
        """The units of a tile, [size, d]."""
        vectors, inverse = self.vectors[span], self.inverse_lengths[span]
        first = span.stop > self.visited
        self.visited = max(self.visited, span.stop)
        if first and self.normalized:
            # In float64 no square of a large or a small entry is lost.
            lengths = torch.linalg.vector_norm(vectors, dim=1, dtype=torch.float64)
            inverse.copy_(lengths.clamp_min_(SMALLEST_NORM).reciprocal_())
        if first and self.wants_sum:
            self.sum += inverse @ vectors
        return vectors * inverse[:, None] if self.normalized else vectors

    def by_vectors(self, gradient: Tensor, units: Tensor, span: slice) -> None:
        """Make a gradient by the units of a tile one by its vectors, in place."""
        if self.normalized:
            along = torch.linalg.vecdot(gradient, units)[:, None]
            gradient.addcmul_(units, along, value=-1).mul_(self.inverse_lengths[span, None])


def leave_out(exponents: Tensor, places: Tensor, held: Tensor) -> None:
    """Put -inf into one column of each row of a tile, in place, where `held` and the column is one of the tile's."""
    inside = held & (places >= 0) & (places < exponents.shape[1])
    places = places.clamp(0, exponents.shape[1] - 1)[:, None]
    exponents.scatter_(1, places, exponents.gather(1, places).masked_fill_(inside[:, None], -math.inf))


class _Tile(NamedTuple):
    """Of some anchors and the centers of some classes.

    Attributes:
        exponentials: float [rows, centers], the derivative of their sum over classes by similarities, over the scale.
        shift: float [rows], what was taken from the exponents.
        log_sum: float [rows], log-sum-exp over the classes.
    """

    exponentials: Tensor
    shift: Tensor
    log_sum: Tensor


class _Block(NamedTuple):
    """Some anchors: where they are in the batch, their vectors and labels, and where their classes are."""

    span: slice
    anchors: Tensor
    labels: Tensor
    places: Tensor
    held: Tensor


class _Walk:
    """Goes over anchors in blocks, and for each block twice over the centers: for its rows, and for its gradient."""

    def __init__(
        self, anchors: Tensor, labels: Tensor, centers: Centers, parameters: Sequence[Tensor], row_values: RowValues
    ) -> None:
        self.anchors, self.labels, self.centers, self.row_values = anchors.detach(), labels, centers, row_values
        self.vectors, self.bias = parameters[0].detach(), parameters[1].detach() if len(parameters) > 1 else None
        columns = centers.most
        # Of few anchors and many centers nothing is kept, and rows are not divided: a block costs a pass over them.
        self.keeps = columns * min(len(anchors), FEWEST_ROWS) <= MOST_KEPT
        rows = min(max(BLOCK_ROWS, BLOCK_ELEMENTS // columns), max(FEWEST_ROWS, MOST_KEPT // columns))
        self.rows = rows if self.keeps else len(anchors)
        widest = max(min(self.rows, len(anchors)), anchors.shape[1])
        size = max(1, TILE_ELEMENTS // widest // centers.per_class) * centers.per_class
        self.tiles = CenterTiles(self.vectors, self.bias is None, size, centers.wants_mean)
        # Bounded exponents need no search for the largest.
        self.bounded = self.bias is None and centers.scale <= BOUNDED_SCALE

    def values(self) -> Tensor:
        """The values of all anchors, [n]."""
        values = []
        with torch.no_grad():
            for block in self._blocks():
                others, _ = self._others(block, keep=False)
                own = self._own_centers(block)
                values.append(self.row_values(self._rows(block, block.anchors, own, others, self._mean(block))))
        return torch.cat(values)

    def gradients(self, by_centers: bool) -> list[Tensor | None]:
        """The gradients of the sum, which becomes `total`, by anchors, centers and, where there is one, bias."""
        self.total = self.anchors.new_zeros(())
        self.by_anchors = torch.empty_like(self.anchors)
        self.by_vectors = torch.empty_like(self.vectors) if by_centers else None
        self.by_bias = None if self.bias is None else torch.zeros_like(self.bias)
        self.own_gradients: list[tuple[_Block, list[Tensor]]] = []
        for block in self._blocks():
            self._add_block(block)
        self._add_own_gradients()
        if self.centers.divided:
            self.by_anchors *= distributed.world_size()
        gradients = [self.by_anchors, self.by_vectors, *([] if self.by_bias is None else [self.by_bias])]
        # Kept here too, autograd would copy them instead of taking them.
        del self.by_anchors, self.by_vectors, self.by_bias
        return gradients

    def _blocks(self) -> Iterator[_Block]:
        for start in range(0, len(self.anchors), self.rows):
            span = slice(start, min(start + self.rows, len(self.anchors)))
            places, held = self.centers.places(self.labels[span])
            yield _Block(span, self.anchors[span], self.labels[span], places, held)

    # The rows of a block ------------------------------------------------------------------------------------------

    def _others(self, block: _Block, keep: bool) -> tuple[Tensor, list[_Tile]]:
        """Log-sum-exp over all classes but one's own, [rows], and, if they are to be kept, the tiles."""
        others, kept = block.anchors.new_full((len(block.anchors),), -math.inf), []
        for span in self.tiles:
            tile = self._tile(block, span, self.tiles.units(span))
            others = torch.logaddexp(others, tile.log_sum)
            if keep:
                kept.append(tile)
        return distributed.log_sum_exp(others) if self.centers.divided else others, kept

    def _tile(self, block: _Block, span: slice, units: Tensor) -> _Tile:
        scale, k = self.centers.scale, self.centers.per_class
        exponents = scale * block.anchors @ units.T
        if self.bias is not None:
            exponents += scale * self.bias[span]
        if k > 1:
            by_class = exponents.view(len(exponents), -1, k)
            weights = (by_class / (scale * self.centers.temperature)).softmax(dim=2)
            exponents = torch.linalg.vecdot(weights, by_class)
            # How the similarity to a class changes with those to its centers.
            spread = weights * (1 + (by_class - exponents[..., None]) / (scale * self.centers.temperature))
        leave_out(exponents, block.places - span.start // k, block.held)
        if self.bounded:
            shift = exponents.new_full((len(exponents),), scale)
        else:
            shift = exponents.amax(dim=1).clamp_min_(torch.finfo(exponents.dtype).min)
        exponents.sub_(shift[:, None]).exp_()
        log_sum = exponents.sum(dim=1).log_().add_(shift)
        return _Tile((exponents[..., None] * spread).flatten(1) if k > 1 else exponents, shift, log_sum)

    def _own_columns(self, block: _Block) -> Tensor:
        """Where the centers of one's class are among all, [rows x per_class]."""
        k = self.centers.per_class
        return (block.places[:, None] * k + torch.arange(k, device=block.places.device)).flatten()

    def _own_centers(self, block: _Block) -> list[Tensor]:
        """The centers of each anchor's class, [rows x per_class, d], and, where there is one, its bias, [rows]."""
        centers = self.vectors[self._own_columns(block)]
        return [centers] if self.bias is None else [centers, self.bias[block.places]]

    def _mean(self, block: _Block) -> Tensor:
        """The mean over all classes of scale x similarity, [rows]."""
        if not self.centers.wants_mean:
            return torch.zeros_like(block.anchors[:, 0])
        total = block.anchors @ self.tiles.sum
        total = total if self.bias is None else total + self.bias.sum()
        return (
            self.centers.scale
            / self.centers.classes
            * (total if not self.centers.divided else distributed.total(total))
        )

    def _rows(self, block: _Block, anchors: Tensor, own: list[Tensor], others: Tensor, mean: Tensor) -> CenterRows:
        similarity = self.centers.own_similarity(anchors, own[0], own[1] if len(own) > 1 else None)
        if self.centers.divided:  # the value from the process that holds it, the gradient there alone
            similarity = torch.where(block.held[:, None], similarity, 0.0)
            similarity = similarity + (distributed.total(similarity.detach()) - similarity.detach())
        return CenterRows(similarity, others, mean, self.centers.classes)

    # Its gradient -------------------------------------------------------------------------------------------------

    def _add_block(self, block: _Block) -> None:
        others, kept = self._others(block, self.keeps)
        by_others, by_mean = self._add_values(block, others)
        # Where there is no other class nothing depends on it, and infinities would leave NaN.
        factors = torch.where(others > -math.inf, self.centers.scale * by_others, 0.0)
        finite = others.masked_fill(others == -math.inf, 0.0)
        by_anchors = self.by_anchors[block.span]
        if self.centers.wants_mean:
            by_mean = by_mean * (self.centers.scale / self.centers.classes)
            by_anchors.addmm_(by_mean[:, None], self.tiles.sum[None])
        for i, span in enumerate(self.tiles):
            units = self.tiles.units(span)
            tile = kept[i] if kept else self._tile(block, span, units)
            weights = factors * (tile.shift - finite).exp()
            by_anchors.addcmul_(weights[:, None], tile.exponentials @ units)
            self._add_to_centers(block, span, units, weights, tile.exponentials, by_mean)

    def _add_values(self, block: _Block, others: Tensor) -> tuple[Tensor, Tensor]:
        """Add the block's values, and what of the gradient goes by one's own class; returns that by others and mean."""
        inputs = [block.anchors, others, self._mean(block), *self._own_centers(block)]
        inputs = [tensor.detach().requires_grad_() for tensor in inputs]
        with torch.enable_grad():
            anchors, others, mean, *own = inputs
            value = self.row_values(self._rows(block, anchors, own, others, mean)).sum()
        self.total = self.total + value.detach()
        by_anchors, by_others, by_mean, *by_own = torch.autograd.grad(
            value, inputs, allow_unused=True, materialize_grads=True
        )
        self.by_anchors[block.span] = by_anchors
        self.own_gradients.append((block, by_own))
        return by_others, by_mean

    def _add_own_gradients(self) -> None:
        """Last, for they are gradients by centers already, and those of the tiles are made such in the last block."""
        for block, by_own in self.own_gradients:
            if self.by_vectors is not None:
                self.by_vectors.index_add_(0, self._own_columns(block), by_own[0])
            if self.by_bias is not None:
                self.by_bias.index_add_(0, block.places, by_own[1])
        self.own_gradients.clear()

    def _add_to_centers(
        self, block: _Block, span: slice, units: Tensor, weights: Tensor, exponentials: Tensor, by_mean: Tensor
    ) -> None:
        """Add the gradient by the centers of a tile, and by their biases."""
        if self.by_bias is not None:
            self.by_bias[span] += weights @ exponentials + by_mean.sum()
        if self.by_vectors is None:
            return
        gradient = self.by_vectors[span]
        first, last = block.span.start == 0, block.span.stop == len(self.anchors)
        gradient.addmm_(exponentials.T, block.anchors * weights[:, None], beta=0 if first else 1)
        if self.centers.wants_mean:
            gradient += by_mean @ block.anchors
        if last:  # while the tile is at hand
            self.tiles.by_vectors(gradient, units, span)
