"""Anchors against references: rows of similarities with masks of positives and negatives, whole or in tiles.

Every loss of the library sees its data through the three pieces here. A :class:`Source` says what is compared with
what, :class:`Rows` is a stretch of its similarity matrix with the two masks, and :func:`sum_over_rows` is the one
place that walks over a source and adds up values and gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vicinal import distributed
from vicinal.errors import InputError

SMALLEST_NORM = 1e-12
TILE_ELEMENTS = 2**20
"""Similarities a tile holds unless told otherwise: 4 MB in float32, which stays in a processor's cache."""


def normalize(vectors: Tensor) -> Tensor:
    """L2-normalise the rows of a float tensor [n, d]; a zero row stays zero, and nothing overflows on the way.

    Rows are first divided by their largest entry, so that squares of very large or very small entries neither
    overflow nor vanish. Rows without an entry of 1e-12 are divided by 1e-12 instead of their norm, which bounds the
    gradient.

    Example:
        >>> normalize(torch.tensor([[3.0, 4.0], [0.0, 0.0], [3e30, 4e30]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000],
                [0.6000, 0.8000]])
    """
    largest = vectors.detach().abs().amax(dim=-1, keepdim=True)
    scaled = vectors / largest.clamp_min(SMALLEST_NORM)
    norm = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
    return scaled / norm.masked_fill(largest < SMALLEST_NORM, 1.0)


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor in float32, or as it is when it is float64."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


class Rows(NamedTuple):
    """A stretch of a similarity matrix: some anchors against all references.

    Attributes:
        similarity: float [rows, columns], cosine similarities in [-1, 1].
        positive: bool [rows, columns], same class as the anchor, and not the anchor itself.
        negative: bool [rows, columns], another class than the anchor.
    """

    similarity: Tensor
    positive: Tensor
    negative: Tensor


@dataclass(frozen=True)
class Source:
    """What is compared with what: L2-normalised anchors against L2-normalised references.

    Attributes:
        anchors: float [n, d].
        labels: int [n].
        references: float [c, d].
        reference_labels: int [c].
        offset: anchor i is reference `offset + i`; None when no anchor is among the references.
        shared: whether these anchors are one process's part of a batch, and the references all of it.
    """

    anchors: Tensor
    labels: Tensor
    references: Tensor
    reference_labels: Tensor
    offset: int | None
    shared: bool = False

    @classmethod
    def of(
        cls,
        embeddings: Tensor,
        labels: Tensor,
        references: Tensor | None = None,
        reference_labels: Tensor | None = None,
        offset: int | None = None,
    ) -> Source:
        """Check and normalise; without references the batch is compared with itself.

        Raises:
            InputError: shapes, types or the offset do not fit together.
        """
        _check("embeddings", embeddings, "labels", labels)
        anchors = normalize(at_least_float32(embeddings))
        if references is None:
            if reference_labels is not None or offset is not None:
                raise InputError("reference_labels and offset describe references, and no references are given")
            return cls(anchors, labels, anchors, labels, 0)
        if reference_labels is None:
            raise InputError("references are given without reference_labels; give one label a reference")
        _check("references", references, "reference_labels", reference_labels)
        if references.shape[1] != embeddings.shape[1]:
            raise InputError(f"embeddings have {embeddings.shape[1]} dimensions and references {references.shape[1]}")
        if offset is not None and not 0 <= offset <= len(references) - len(embeddings):
            raise InputError(
                f"offset = {offset} places {len(embeddings)} anchors outside the {len(references)} references"
            )
        return cls(anchors, labels, normalize(at_least_float32(references)), reference_labels, offset)

    @classmethod
    def over_processes(cls, embeddings: Tensor, labels: Tensor) -> Source:
        """This process's part of a batch against the parts of all processes, gathered with their gradients.

        The mean over processes of a loss and of its gradients is then that of the whole batch in one process.
        """
        if distributed.world_size() == 1:
            return cls.of(embeddings, labels)
        references, reference_labels = distributed.gather(embeddings), distributed.gather(labels)
        source = cls.of(embeddings, labels, references, reference_labels, distributed.rank() * len(labels))
        return replace(source, shared=True)

    def __len__(self) -> int:
        return len(self.anchors)

    def rows(self, start: int = 0, stop: int | None = None) -> Rows:
        """Similarities and masks of the anchors `start` to `stop` (all by default)."""
        return self.masked(self.anchors[start:stop] @ self.references.T, start)

    def masked(self, similarity: Tensor, start: int) -> Rows:
        """Put the masks beside the similarities [rows, c] of the anchors from `start` on."""
        same = self.labels[start : start + len(similarity), None] == self.reference_labels[None, :]
        negative = ~same
        if self.offset is not None:
            same.diagonal(self.offset + start).fill_(False)
        return Rows(similarity, same, negative)


def _check(name: str, vectors: Tensor, labels_name: str, labels: Tensor) -> None:
    if vectors.ndim != 2 or not vectors.is_floating_point():
        raise InputError(f"{name} must be float [n, d], not {vectors.dtype} {list(vectors.shape)}")
    if labels.shape != vectors.shape[:1] or labels.is_floating_point() or labels.is_complex():
        raise InputError(
            f"{labels_name} must be int [{len(vectors)}], one for each row of {name}, "
            f"not {labels.dtype} {list(labels.shape)}"
        )


RowTerms = Callable[[Rows], Sequence[Tensor]]
"""Turns rows into one or more values an anchor, each [rows]."""


def check_tile_rows(tile_rows: int | None) -> None:
    """Raise InputError unless the number of rows a tile is positive or left to us."""
    if tile_rows is not None and tile_rows < 1:
        raise InputError(f"tile_rows = {tile_rows} must be at least 1")


def default_tile_rows(columns: int) -> int:
    """Rows a tile has so that its similarities stay in cache."""
    return max(1, TILE_ELEMENTS // max(columns, 1))


def sum_over_rows(
    source: Source, row_terms: RowTerms, parameters: Sequence[Tensor] = (), tile_rows: int | None = None
) -> tuple[Tensor, ...]:
    """Sum over all anchors of the values that `row_terms` gives each; differentiable.

    The matrix of similarities is never held as a whole when it has more than one tile: each tile's gradient with
    respect to the embeddings is formed as soon as its value is, so memory is tile x columns + n x d. Value and
    gradient are those of the whole matrix, to rounding.

    Args:
        source: n anchors against c references.
        row_terms: function of :class:`Rows` whose result for an anchor depends on the anchor's row alone.
        parameters: tensors beside the similarities that `row_terms` depends on and that need gradients.
        tile_rows: anchors a tile; default: as many as keep the tile in cache.

    Returns:
        One scalar for each term.

    Raises:
        InputError: `tile_rows` is not positive.
    """
    check_tile_rows(tile_rows)
    compiling = torch.compiler.is_compiling()  # a compiled graph fuses the whole matrix by itself
    rows = tile_rows or (len(source) if compiling else default_tile_rows(len(source.references)))
    if rows >= len(source):
        return tuple(term.sum() for term in row_terms(source.rows()))
    sums = _TiledSum.apply(source.anchors, source.references, source, row_terms, rows, *parameters)
    return tuple(sums)


class _TiledSum(torch.autograd.Function):
    """Walks tile by tile; the gradients, linear in the upstream ones, are formed on the way and scaled in backward."""

    @staticmethod
    def forward(
        ctx: Any,
        anchors: Tensor,
        references: Tensor,
        source: Source,
        row_terms: RowTerms,
        tile_rows: int,
        *parameters: Tensor,
    ) -> tuple[Tensor, ...]:
        walk = _Walk(source, row_terms, parameters)
        for start in range(0, len(source), tile_rows):
            walk.add_tile(start, min(start + tile_rows, len(source)), needs_gradient=any(ctx.needs_input_grad))
        ctx.terms = list(walk.gradients)
        ctx.save_for_backward(*(gradient for term in ctx.terms for gradient in walk.gradients[term]))
        ctx.inputs = 2 + len(parameters)
        return tuple(walk.sums)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # asked for with create_graph=True, and would silently lack most of its terms
            raise RuntimeError("in tiles a loss has no second derivative; set tile_rows to the size of the batch")
        saved = ctx.saved_tensors
        # saved holds, for each term with a gradient, that gradient with respect to every input.
        totals = [
            sum(upstream[term] * saved[k * ctx.inputs + i] for k, term in enumerate(ctx.terms))
            for i in range(ctx.inputs)
        ]
        return (*totals[:2], None, None, None, *totals[2:])


class _Walk:
    """The running sums of a walk: a value for each term, and its gradient with respect to every input if it has one."""

    def __init__(self, source: Source, row_terms: RowTerms, parameters: Sequence[Tensor]) -> None:
        self.source = source
        self.row_terms = row_terms
        self.parameters = parameters
        self.sums: list[Tensor] = []
        self.gradients: dict[int, list[Tensor]] = {}

    def add_tile(self, start: int, stop: int, needs_gradient: bool) -> None:
        source = self.source
        with torch.set_grad_enabled(needs_gradient):
            similarity = source.anchors[start:stop].detach() @ source.references.detach().T
            similarity.requires_grad_(needs_gradient)
            terms = [term.sum() for term in self.row_terms(source.masked(similarity, start))]
        if not self.sums:
            self.sums = [torch.zeros_like(term.detach()) for term in terms]
        for i, term in enumerate(terms):
            self.sums[i] += term.detach()
            if term.requires_grad:
                self._add_gradient(i, term, similarity, slice(start, stop))

    def _add_gradient(self, i: int, term: Tensor, similarity: Tensor, rows: slice) -> None:
        inputs = (self.source.anchors, self.source.references, *self.parameters)
        if i not in self.gradients:
            self.gradients[i] = [torch.zeros_like(tensor.detach()) for tensor in inputs]
        anchors, references, *parameters = self.gradients[i]
        wanted = [(p, total) for p, total in zip(self.parameters, parameters, strict=True) if p.requires_grad]
        by_similarity, *by_parameter = torch.autograd.grad(
            term, (similarity, *(p for p, _ in wanted)), retain_graph=True, allow_unused=True
        )
        if by_similarity is not None:
            anchors[rows] += by_similarity @ self.source.references.detach()
            references.addmm_(by_similarity.T, self.source.anchors[rows].detach())
        for (_, total), gradient in zip(wanted, by_parameter, strict=True):
            if gradient is not None:
                total += gradient
