"""The walk over a source, tile by tile: sums of a function of rows, and their gradients, in memory linear in the batch.

Nothing else in the library loops over anchors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from vicinal.errors import InputError
from vicinal.pair_layout import Pairs
from vicinal.similarity import Rows, Source

TILE_ELEMENTS = 2**20
"""Similarities a tile holds unless told otherwise: 4 MB in float32, which a processor's cache holds."""
FEWEST_ROWS = 128
"""Products of fewer rows than this are slower for each of them."""

RowTerms = Callable[[Rows], Sequence[Tensor]]
"""Turns rows into one or more terms: a value an anchor, [rows], or, without gradient, several, [rows, k]."""


def check_tile_rows(tile_rows: int | None) -> None:
    """Raise InputError unless the number of rows a tile is positive or left to us."""
    if tile_rows is not None and tile_rows < 1:
        raise InputError(f"tile_rows = {tile_rows} must be at least 1")


def default_tile_rows(columns: int) -> int:
    """Rows of a tile that stay in cache, as far as products stay fast."""
    return max(FEWEST_ROWS, TILE_ELEMENTS // columns)


def refuse_second_derivative() -> None:
    """Raise RuntimeError in a backward pass with create_graph=True, which would silently lack most of its terms."""
    if torch.is_grad_enabled():
        raise RuntimeError("a loss has no second derivative: its gradient is formed with its value")


def sum_over_rows(
    source: Source,
    row_terms: RowTerms,
    parameters: Sequence[Tensor] = (),
    tile_rows: int | None = None,
    select: Callable[[Rows], Rows] | None = None,
) -> tuple[Tensor, ...]:
    """Sum over all anchors of the terms that `row_terms` gives each; differentiable once.

    The matrix of similarities is never held as a whole when it has more than one tile, nor kept for the backward pass:
    each tile's gradient with respect to the embeddings is formed as soon as its value is, so memory is
    tile x columns + n x d. Value and gradient are those of the whole matrix, to rounding.

    Args:
        source: n anchors against c references.
        row_terms: function of :class:`~vicinal.similarity.Rows` whose result for an anchor depends on its row alone.
        parameters: tensors beside the similarities that `row_terms` depends on and that need gradients.
        tile_rows: anchors a tile; default: chosen from the sizes.
        select: narrows the rows before, such as a miner; it gets no gradient.

    Returns:
        For each term its sum: a scalar, or [k].

    Raises:
        InputError: `tile_rows` is not positive.
    """
    check_tile_rows(tile_rows)
    if torch.compiler.is_compiling():  # a compiled graph fuses the whole matrix by itself
        rows = source.rows(0, source.similarity(0, len(source)), source.pairs(0, len(source)))
        return tuple(term.sum(0) for term in row_terms(select(rows) if select else rows))
    walk = _Walk(source, row_terms, select, parameters)
    rows_a_tile = tile_rows or default_tile_rows(source.columns)
    if not torch.is_grad_enabled():
        return tuple(walk.all_tiles(rows_a_tile))
    return tuple(_TiledSum.apply(walk, rows_a_tile, *walk.inputs))


def values_of_rows(
    source: Source,
    row_values: Callable[[Rows], Tensor],
    tile_rows: int | None = None,
    select: Callable[[Rows], Rows] | None = None,
) -> Tensor:
    """The values of all anchors, [n], without gradient; arguments as in :func:`sum_over_rows`."""
    walk = _Walk(source, lambda rows: [row_values(rows)], select, ())
    with torch.no_grad():
        tiles = walk.spans(tile_rows or default_tile_rows(source.columns))
        values = [row_values(walk.rows(start, stop)[0]) for start, stop in tiles]
    return torch.cat([*values, source.anchors.new_zeros(0)])


class _TiledSum(torch.autograd.Function):
    """The gradients, linear in the upstream ones, are formed in forward and scaled in backward."""

    @staticmethod
    def forward(ctx: Any, walk: _Walk, rows_a_tile: int, *inputs: Tensor) -> tuple[Tensor, ...]:
        sums = walk.all_tiles(rows_a_tile, needs_gradient=any(ctx.needs_input_grad))
        ctx.terms = list(walk.gradients)
        ctx.save_for_backward(*(gradient for term in ctx.terms for gradient in walk.gradients[term]))
        ctx.inputs = len(inputs)
        ctx.mark_non_differentiable(*(total for i, total in enumerate(sums) if i not in ctx.terms))
        return tuple(sums)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        saved = ctx.saved_tensors
        # saved holds, for each term with a gradient, that gradient with respect to every input.
        first, *others = ctx.terms
        totals = [upstream[first] * gradient for gradient in saved[: ctx.inputs]]
        for k, term in enumerate(others, 1):
            for total, gradient in zip(totals, saved[k * ctx.inputs : (k + 1) * ctx.inputs], strict=True):
                total.addcmul_(gradient, upstream[term])
        return (None, None, *totals)


class _Walk:
    """Goes over a source and adds up each term, and for those with a gradient that, with respect to every input."""

    def __init__(
        self,
        source: Source,
        row_terms: RowTerms,
        select: Callable[[Rows], Rows] | None,
        parameters: Sequence[Tensor],
    ) -> None:
        self.source = source
        self.row_terms = row_terms
        self.select = select
        self.parameters = parameters
        self.class_columns = source.class_columns()
        self.inputs = (*source.inputs, *parameters)
        self.sums: list[Tensor] = []
        self.gradients: dict[int, list[Tensor]] = {}

    def all_tiles(self, rows_a_tile: int, needs_gradient: bool = False) -> list[Tensor]:
        for start, stop in self.spans(rows_a_tile):
            self._add_tile(start, stop, needs_gradient)
        return self.sums

    def spans(self, rows_a_tile: int) -> list[tuple[int, int]]:
        starts = range(0, len(self.source), rows_a_tile)
        return [(start, min(start + rows_a_tile, len(self.source))) for start in starts]

    def rows(self, start: int, stop: int) -> tuple[Rows, Pairs]:
        """The rows of a tile that are left to select, without gradient, and where their pairs are."""
        with torch.no_grad():
            pairs = self.source.pairs(start, stop, self.class_columns)
            rows = self.source.rows(start, self.source.similarity(start, stop), pairs)
            return (self.select(rows) if self.select else rows), pairs

    def _add_tile(self, start: int, stop: int, needs_gradient: bool) -> None:
        rows, pairs = self.rows(start, stop)
        leaves = rows.positives.detach(), rows.negatives.detach()
        with torch.set_grad_enabled(needs_gradient):
            rows = rows._replace(
                positives=leaves[0].requires_grad_(needs_gradient), negatives=leaves[1].requires_grad_(needs_gradient)
            )
            terms = [term.sum(0) for term in self.row_terms(rows)]
        values = [term.detach() for term in terms]
        self.sums = [a + b for a, b in zip(self.sums, values, strict=True)] if self.sums else values
        for i, term in enumerate(terms):
            if term.requires_grad:
                self._add_gradient(i, term, leaves, pairs, (start, stop))

    def _add_gradient(
        self, i: int, term: Tensor, leaves: tuple[Tensor, Tensor], pairs: Pairs, span: tuple[int, int]
    ) -> None:
        if i not in self.gradients:
            self.gradients[i] = [torch.zeros_like(tensor.detach()) for tensor in self.inputs]
        totals = self.gradients[i]
        wanted = [k for k, parameter in enumerate(self.parameters) if parameter.requires_grad]
        by_positives, by_negatives, *by_parameters = torch.autograd.grad(
            term, (*leaves, *(self.parameters[k] for k in wanted)), retain_graph=True, allow_unused=True
        )
        of_source = len(self.source.inputs)
        if by_positives is not None or by_negatives is not None:
            self.source.add_gradient(totals[:of_source], by_positives, by_negatives, pairs, *span)
        for k, gradient in zip(wanted, by_parameters, strict=True):
            if gradient is not None:
                totals[of_source + k] += gradient
