"""Sums over anchors of functions of their rows, tile by tile, with gradients, in memory linear in the batch.

A loss describes its sums by a :class:`TilePass`. The losses of a sum take one pass over the similarities together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vicinal.similarity.pair_source import Observer, PairSource
from vicinal.similarity.rows import ClassPairs, Pairs, Rows, add_sparse_products, few_entries
from vicinal.utils.arguments import MAX_INTEGER, is_integer, shown
from vicinal.utils.devices import default_tile_rows
from vicinal.utils.errors import InputError

RowTerms = Callable[[Rows], Sequence[Tensor]]
"""Computes one or more terms from rows: one value per anchor, [rows], or, without gradient, several, [rows, k]."""
RowFilter = Callable[[Rows], Rows]
"""Selects pairs from rows, without gradient, as a miner does."""


class TilePass(NamedTuple):
    """The work of a loss in one pass over all similarities of a source, tile by tile.

    Attributes:
        finish: computes the value from the sums over anchors, one per term.
        row_terms: the terms that are summed over anchors, see :func:`sum_over_rows`; None: nothing.
        parameters: other tensors that `row_terms` depends on and that need gradients.
        miner: selects the pairs that `row_terms` gets.
        observe: reads the similarities of a tile.
        tile_rows: number of anchors in a tile; None: any.
    """

    finish: Callable[[tuple[Tensor, ...]], Tensor]
    row_terms: RowTerms | None = None
    parameters: Sequence[Tensor] = ()
    miner: RowFilter | None = None
    observe: Observer | None = None
    tile_rows: int | None = None

    def mined(self, rows: Rows) -> Rows:
        """The rows with the pairs that the miner selects."""
        return self.miner(rows) if self.miner else rows


def check_tile_rows(tile_rows: int | None) -> None:
    """Raise InputError unless the number of rows of a tile is positive, or None, which stands for the default."""
    if tile_rows is not None and not (is_integer(tile_rows) and 1 <= tile_rows <= MAX_INTEGER):
        raise InputError(f"tile_rows = {shown(tile_rows)} must be at least 1, a whole number")


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
        The sum of each term: a scalar, or [k].

    Raises:
        InputError: `tile_rows` is not positive.
    """
    check_tile_rows(tile_rows)
    return _sums(source, [TilePass(lambda sums: sums[0], row_terms, parameters, miner, tile_rows=tile_rows)])[0]


def values_of_passes(source: PairSource, passes: Sequence[TilePass]) -> list[Tensor]:
    """The values of several losses, from similarities that are computed once."""
    return [each.finish(sums) for each, sums in zip(passes, _sums(source, passes), strict=True)]


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
    if source.is_empty:
        return source.anchors.new_zeros(len(source))
    rows = (source.tile(span)[0] for span in _spans(source, tile_rows))
    return torch.cat([row_values(miner(each) if miner else each) for each in rows])


def _sums(source: PairSource, passes: Sequence[TilePass]) -> list[tuple[Tensor, ...]]:
    """The sums of the terms of each pass."""
    if torch.compiler.is_compiling():  # the compiler fuses the operations on the whole matrix
        rows, _ = source.tile(slice(0, len(source)))
        terms = [each.row_terms(each.mined(rows)) if each.row_terms else () for each in passes]
        return [tuple(term.sum(0) for term in each) for each in terms]
    tile_rows = min((each.tile_rows for each in passes if each.tile_rows is not None), default=None)
    inputs = [*source.inputs, *(parameter for each in passes for parameter in each.parameters)]
    num_terms = [0] * len(passes)
    spans, grad_enabled = _spans(source, tile_rows), torch.is_grad_enabled()
    sums = iter(_SumsOverRows.apply(source, spans, passes, num_terms, grad_enabled, *inputs))
    return [tuple(islice(sums, number)) for number in num_terms]


def _spans(source: PairSource, tile_rows: int | None) -> list[slice]:
    """The spans of the anchors of a source that are computed at a time."""
    n, columns = source.shape
    step = tile_rows or default_tile_rows(columns, source.anchors.device)
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


class _SumsOverRows(torch.autograd.Function):
    """Computes the gradients, which are linear in the upstream ones, in forward and scales them in backward.

    How many terms each pass sums is written to `num_terms`.
    """

    @staticmethod
    def forward(
        ctx: Any, source: PairSource, spans: Sequence[slice], passes: Sequence[TilePass], num_terms: list[int],
        grad_enabled: bool, *inputs: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        needs_grad = grad_enabled and any(ctx.needs_input_grad)
        sums: list[Tensor] = []
        gradients = _Gradients(source, inputs)
        observers = [each.observe for each in passes if each.observe is not None]
        for span in spans:
            with torch.no_grad():
                rows, pairs = source.tile(span, observers)
            values: list[Tensor] = []
            for number, each in enumerate(passes):
                terms: list[Tensor] = []
                if each.row_terms is not None:
                    with torch.set_grad_enabled(needs_grad):
                        leaves = each.mined(rows).as_leaves(needs_grad)
                        terms = [term.sum(0) for term in each.row_terms(leaves)]
                for i, term in enumerate(terms, len(values)):
                    if term.requires_grad:
                        gradients.add(i, term, leaves, pairs, span)
                values += [term.detach() for term in terms]
                num_terms[number] = len(terms)
            sums = [a + b for a, b in zip(sums, values, strict=True)] if sums else values
        ctx.terms = list(gradients.totals)
        ctx.save_for_backward(*(gradient for totals in gradients.totals.values() for gradient in totals))
        ctx.num_inputs = len(inputs)
        ctx.mark_non_differentiable(*(total for i, total in enumerate(sums) if i not in ctx.terms))
        return tuple(sums)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        saved, n = ctx.saved_tensors, ctx.num_inputs
        # For each term with a gradient, `saved` holds its gradient with respect to every input.
        first, *others = ctx.terms
        totals = [upstream[first] * gradient for gradient in saved[:n]]
        for k, term in enumerate(others, 1):
            for i, gradient in enumerate(saved[k * n : (k + 1) * n]):
                totals[i].addcmul_(gradient, upstream[term])
        return (None, None, None, None, None, *totals)


class _Gradients:
    """Sums over tiles of the gradient of each term with respect to each input.

    Args:
        source: where the rows are from.
        inputs: the inputs of the source, then parameters.

    Attributes:
        totals: number of a term -> its gradient with respect to each input.
    """

    def __init__(self, source: PairSource, inputs: Sequence[Tensor]) -> None:
        self.source, self.of_source, self.inputs = source, len(source.inputs), inputs
        self.learned = [k for k in range(self.of_source, len(inputs)) if inputs[k].requires_grad]
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
            _add_gradient(self.source, totals[: self.of_source], span, pairs, grad_positives, grad_negatives)
        for k, gradient in zip(self.learned, grad_parameters, strict=True):
            if gradient is not None:
                totals[k] += gradient


def _add_gradient(
    source: PairSource,
    totals: Sequence[Tensor],
    span: slice,
    pairs: Pairs,
    grad_positives: Tensor | None,
    grad_negatives: Tensor | None,
) -> None:
    """Add the gradient with respect to the inputs of a source, in the cheapest way."""
    if not source.allows_sparse_gradient:
        source.add_gradient(totals, span, pairs.join(grad_positives, grad_negatives))
        return
    anchors, references = source.anchors[span].detach(), source.references.detach()
    if grad_negatives is None and isinstance(pairs, ClassPairs) and pairs.is_sparse(source.dim):
        pairs.add_products(grad_positives, anchors, references, (totals[0][span], totals[-1]))
        return
    gradient = pairs.join(grad_positives, grad_negatives)
    entries = few_entries(gradient)
    if entries is None:
        source.add_gradient(totals, span, gradient)
        return
    grad_anchors = totals[0][span] if source.anchors.requires_grad else None
    grad_references = totals[-1] if source.references.requires_grad else None
    add_sparse_products(gradient, entries, anchors, references, (grad_anchors, grad_references))
