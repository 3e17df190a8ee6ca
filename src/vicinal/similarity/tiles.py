"""Sums over anchors of functions of their rows, tile by tile, with gradients, in memory linear in the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vicinal.similarity.pair_source import PairSource
from vicinal.similarity.pairs import Pairs
from vicinal.similarity.rows import Rows
from vicinal.utils.arguments import MAX_INTEGER, is_integer, shown
from vicinal.utils.errors import InputError
from vicinal.utils.kernels import tile_elements

MIN_ROWS = 128
"""Matrix products with fewer rows take longer per row."""
MAX_THREADS = 4
"""Of a CPU, with which a tile grows: what one of them does alone for each tile would else hold up more of them."""

RowTerms = Callable[[Rows], Sequence[Tensor]]
"""Computes one or more terms from rows: one value per anchor, [rows], or, without gradient, several, [rows, k]."""
RowFilter = Callable[[Rows], Rows]
"""Selects pairs from rows, without gradient, as a miner does."""
Look = Callable[[Tensor, slice], None]
"""Reads the similarities [rows, c] of a span of anchors, which it must not change."""


class RowSums(NamedTuple):
    """Terms that are summed over the rows of a source; for the attributes see :func:`sum_over_rows`."""

    row_terms: RowTerms
    parameters: Sequence[Tensor] = ()
    miner: RowFilter | None = None

    def mined(self, rows: Rows) -> Rows:
        """The rows with the pairs that the miner leaves."""
        return self.miner(rows) if self.miner else rows


def check_tile_rows(tile_rows: int | None) -> None:
    """Raise InputError unless the number of rows of a tile is positive, or None, which stands for the default."""
    if tile_rows is not None and not (is_integer(tile_rows) and 1 <= tile_rows <= MAX_INTEGER):
        raise InputError(f"tile_rows = {shown(tile_rows)} must be at least 1, a whole number")


def default_tile_rows(columns: int, device: torch.device) -> int:
    """The number of rows with which a tile has the size for its device, or more where matrix products need more."""
    is_divided = device.type == "cpu" and not torch.compiler.is_compiling()  # which cannot ask for the number
    threads = min(torch.get_num_threads(), MAX_THREADS) if is_divided else 1
    return max(MIN_ROWS, threads * tile_elements(device) // max(columns, 1))


def refuse_second_derivative() -> None:
    """Raise RuntimeError in a backward pass with create_graph=True, whose result would lack most of its terms."""
    if torch.is_grad_enabled():
        raise RuntimeError("a loss has no second derivative: its gradient is computed with its value")


def sum_over_rows(
    source: PairSource,
    row_terms: RowTerms,
    parameters: Sequence[Tensor] = (),
    tile_rows: int | None = None,
    miner: RowFilter | None = None,
) -> tuple[Tensor, ...]:
    """Sum each term that `row_terms` computes over all anchors; differentiable once.

    A similarity matrix of more than one tile is never held as a whole, and no matrix is kept for the backward pass:
    the gradient of a tile with respect to the embeddings is computed together with its value, so memory is
    tile_rows x c + n x d. Value and gradient equal those of the whole matrix, to rounding.

    Args:
        source: n anchors and c references.
        row_terms: function of :class:`~vicinal.similarity.rows.Rows` whose result for an anchor depends only on the
            anchor's row.
        parameters: other tensors that `row_terms` depends on and that need gradients.
        tile_rows: number of anchors in a tile. Default: chosen from the sizes.
        miner: selects the pairs that `row_terms` gets.

    Returns:
        The sum of each term: a scalar, or [k]; of a source with several rows per anchor [rows per anchor], or
        [rows per anchor, k].

    Raises:
        InputError: `tile_rows` is not positive.
    """
    return sums_over_rows(source, [RowSums(row_terms, parameters, miner)], tile_rows)[0]


def sums_over_rows(
    source: PairSource, sums: Sequence[RowSums], tile_rows: int | None = None, looks: Sequence[Look] = ()
) -> list[tuple[Tensor, ...]]:
    """What :func:`sum_over_rows` computes for each of several losses, from similarities that are computed once.

    Args:
        source: n anchors and c references.
        sums: what each loss sums.
        tile_rows: number of anchors in a tile. Default: chosen from the sizes.
        looks: what else reads the similarities, tile by tile.

    Raises:
        InputError: `tile_rows` is not positive.
    """
    check_tile_rows(tile_rows)
    if torch.compiler.is_compiling():  # the compiler fuses the operations on the whole matrix
        whole = slice(0, len(source))
        rows = source.rows(whole, source.similarity(whole), source.pairs(whole))
        return [tuple(source.sum_of(term) for term in each.row_terms(each.mined(rows))) for each in sums]
    tiles = _Tiles(source, tile_rows, looks)
    parameters = [parameter for each in sums for parameter in each.parameters]
    terms = iter(_SumsOverRows.apply(tiles, sums, torch.is_grad_enabled(), *source.inputs, *parameters))
    return [tuple(islice(terms, number)) for number in tiles.num_terms]


@torch.no_grad()
def values_of_rows(
    source: PairSource,
    row_values: Callable[[Rows], Tensor],
    tile_rows: int | None = None,
    miner: RowFilter | None = None,
) -> Tensor:
    """The values that `row_values` computes for all anchors, [n], without gradient.

    For the arguments see :func:`sum_over_rows`.
    """
    tiles, sums = _Tiles(source, tile_rows), RowSums(lambda rows: (row_values(rows),), miner=miner)
    values = (sums.row_terms(sums.mined(tiles.rows(span)[0]))[0] for span in tiles.spans)
    return torch.cat([*values, source.anchors.new_zeros(0)])


class _Tiles:
    """The rows of a source, tile by tile.

    Attributes:
        num_terms: how many terms each loss sums, once they were summed.
    """

    num_terms: list[int]

    def __init__(self, source: PairSource, tile_rows: int | None, looks: Sequence[Look] = ()) -> None:
        self.source, self.looks = source, looks
        self.class_columns = source.class_columns
        columns, n = source.num_references * source.rows_per_anchor, len(source)
        step = tile_rows or default_tile_rows(columns, source.anchors.device)
        self.spans = [slice(start, min(start + step, n)) for start in range(0, n, step)]

    @torch.no_grad()
    def rows(self, span: slice) -> tuple[Rows, Pairs]:
        """The rows of a tile, and where their pairs are."""
        similarity = self.source.similarity(span)
        for look in self.looks:
            look(similarity, span)
        pairs = self.source.pairs(span, self.class_columns)
        return self.source.rows(span, similarity, pairs), pairs


class _SumsOverRows(torch.autograd.Function):
    """Computes the gradients, which are linear in the upstream ones, in forward and scales them in backward."""

    @staticmethod
    def forward(
        ctx: Any, tiles: _Tiles, of_losses: Sequence[RowSums], grad_enabled: bool, *inputs: Tensor
    ) -> tuple[Tensor, ...]:
        needs_grad = grad_enabled and any(ctx.needs_input_grad)
        sums: list[Tensor] = []
        gradients = _Gradients(tiles.source, inputs)
        for span in tiles.spans:
            rows, pairs = tiles.rows(span)
            values: list[Tensor] = []
            tiles.num_terms = []
            for each in of_losses:
                with torch.set_grad_enabled(needs_grad):
                    leaves = each.mined(rows).as_leaves(needs_grad)
                    terms = [tiles.source.sum_of(term) for term in each.row_terms(leaves)]
                for i, term in enumerate(terms, len(values)):
                    if term.requires_grad:
                        gradients.add(i, term, leaves, pairs, span)
                values += [term.detach() for term in terms]
                tiles.num_terms.append(len(terms))
            sums = [a + b for a, b in zip(sums, values, strict=True)] if sums else values
        ctx.terms = list(gradients.totals)
        ctx.save_for_backward(*(gradient for totals in gradients.totals.values() for gradient in totals))
        ctx.source = tiles.source
        ctx.num_inputs = len(inputs)
        ctx.mark_non_differentiable(*(total for i, total in enumerate(sums) if i not in ctx.terms))
        return tuple(sums)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        saved, n = ctx.saved_tensors, ctx.num_inputs
        # For each term with a gradient, `saved` holds its gradient with respect to every input.
        first, *others = ctx.terms
        of_input = ctx.source.upstream_of_input
        totals = [of_input(upstream[first], i) * gradient for i, gradient in enumerate(saved[:n])]
        for k, term in enumerate(others, 1):
            for i, gradient in enumerate(saved[k * n : (k + 1) * n]):
                totals[i].addcmul_(gradient, of_input(upstream[term], i))
        return (None, None, None, *totals)


class _Gradients:
    """Sums over tiles of the gradient of each term with respect to each input.

    Args:
        source: where the rows are from.
        inputs: the inputs of the source, then parameters.

    Attributes:
        totals: number of a term -> its gradient with respect to each input.
    """

    def __init__(self, source: PairSource, inputs: Sequence[Tensor]) -> None:
        self.source, self.inputs = source, inputs
        self.num_source_inputs = len(source.inputs)
        self.learned = [k for k in range(self.num_source_inputs, len(inputs)) if inputs[k].requires_grad]
        self.totals: dict[int, list[Tensor]] = {}

    def add(self, i: int, term: Tensor, rows: Rows, pairs: Pairs, span: slice) -> None:
        """Add the gradient of term `i`, the sum over the rows of a tile."""
        if i not in self.totals:
            self.totals[i] = [torch.zeros_like(tensor.detach()) for tensor in self.inputs]
        totals = self.totals[i]
        leaves = (rows.positives, rows.negatives, *(self.inputs[k] for k in self.learned))
        grad_positives, grad_negatives, *grad_parameters = torch.autograd.grad(
            term, leaves, torch.ones_like(term), retain_graph=True, allow_unused=True
        )
        if grad_positives is not None or grad_negatives is not None:
            self.source.add_pair_gradient(totals[: self.num_source_inputs], span, pairs, grad_positives, grad_negatives)
        for k, gradient in zip(self.learned, grad_parameters, strict=True):
            if gradient is not None:
                totals[k] += gradient
