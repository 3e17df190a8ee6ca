"""Anchors against references: similarities of positive and negative pairs, for any stretch of anchors.

Every loss of the library sees its data through the pieces here. A :class:`Source` says what is compared with what and
which pairs are positive and negative; :class:`Rows` is a stretch of its similarities, split into the two kinds. The
walk over a source, stretch by stretch, is :func:`vicinal.tiles.sum_over_rows`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vicinal import distributed
from vicinal.errors import InputError
from vicinal.pair_layout import ClassColumns, ClassPairs, MaskedPairs, Pairs

SMALLEST_NORM = 1e-12


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
    return _unit_rows(vectors)[0] if torch.compiler.is_compiling() else _Normalize.apply(vectors)


def _unit_rows(vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The normalised rows, and what each was divided by, in two steps."""
    largest = vectors.detach().abs().amax(dim=-1, keepdim=True)
    scaled = vectors / largest.clamp_min(SMALLEST_NORM)
    norm = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True).masked_fill(largest < SMALLEST_NORM, 1.0)
    return scaled / norm, largest, norm


class _Normalize(torch.autograd.Function):
    """Keeps nothing but the result for the backward pass, which has fewer steps than that of the steps."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        unit, largest, norm = _unit_rows(vectors)
        ctx.save_for_backward(unit, largest, norm)
        return unit

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        unit, largest, norm = ctx.saved_tensors
        with torch.autocast(unit.device.type, enabled=False):  # a backward pass may be asked for under autocast
            along = torch.linalg.vecdot(unit, upstream)[..., None].masked_fill(largest < SMALLEST_NORM, 0.0)
        return torch.addcmul(upstream, unit, along, value=-1).div_(norm).div_(largest.clamp_min(SMALLEST_NORM))


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor in float32, or as it is when it is float64."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


class Rows(NamedTuple):
    """Similarities of some anchors to their positives and to their negatives.

    A row is a set: its columns are in no particular order, and positives and negatives have columns of their own.
    Where there is no pair stands one so easy that hinges, exponentials and extremes pass over it: +inf for a positive,
    -inf for a negative. Whatever is computed from a row must have a zero gradient there.

    Attributes:
        positives: float [rows, p], cosine similarities in [-1, 1], or +inf.
        negatives: float [rows, q], cosine similarities in [-1, 1], or -inf.
        labels: int [rows], the anchors' labels, or [rows, ...] with a relation; None where none were given.
        keys: int [rows], a number for each anchor that changes from call to call; random choices are made from it.
        dim: dimension of the embeddings.
    """

    positives: Tensor
    negatives: Tensor
    labels: Tensor | None
    keys: Tensor
    dim: int

    def keep(self, positives: Tensor | None = None, negatives: Tensor | None = None) -> Rows:
        """These rows with only the pairs that the bool masks name; None leaves a kind as it is."""
        rows = self
        if positives is not None:
            rows = rows._replace(positives=torch.where(positives, self.positives, math.inf))
        if negatives is not None:
            rows = rows._replace(negatives=torch.where(negatives, self.negatives, -math.inf))
        return rows

    @property
    def hardest_positive(self) -> Tensor:
        """Lowest similarity of a positive, [rows, 1]; +inf where an anchor has none. Carries no gradient."""
        return self.positives.detach().amin(dim=1, keepdim=True)

    @property
    def hardest_negative(self) -> Tensor:
        """Highest similarity of a negative, [rows, 1]; -inf where an anchor has none. Carries no gradient."""
        return self.negatives.detach().amax(dim=1, keepdim=True)

    @property
    def has_positives(self) -> Tensor:
        """Whether an anchor has a positive, bool [rows]."""
        return self.hardest_positive.squeeze(1) < math.inf

    @property
    def has_negatives(self) -> Tensor:
        """Whether an anchor has a negative, bool [rows]."""
        return self.hardest_negative.squeeze(1) > -math.inf


Relation = Callable[[Tensor, Tensor], Tensor]
"""Says from the labels of anchors [rows, ...] and references [columns, ...] which pairs are positive: bool
[rows, columns]."""


@dataclass(frozen=True)
class Source:
    """What is compared with what: L2-normalised anchors against L2-normalised references.

    Attributes:
        anchors: float [n, d].
        references: float [c, d].
        labels: int [n], or [n, ...] with a relation; None with masks.
        reference_labels: the same for the references.
        offset: anchor i is reference `offset + i`; None when no anchor is among the references.
        relation: which pairs are positive, the others being negative; None: those of equal labels.
        masks: the positive and the negative pairs, bool [n, c] both, instead of labels.
        shared: whether these anchors are one process's part of a batch, and the references all of it.
        call: how many times the loss was called before, for random choices; an int64 scalar, or None.
        raw: the anchors as they came, not normalised, float [n, d] in at least float32; None where there are none.
    """

    anchors: Tensor
    references: Tensor
    labels: Tensor | None
    reference_labels: Tensor | None
    offset: int | None
    relation: Relation | None = None
    masks: tuple[Tensor, Tensor] | None = None
    shared: bool = False
    call: Tensor | None = None
    raw: Tensor | None = None

    @classmethod
    def of(
        cls,
        embeddings: Tensor,
        labels: Tensor | None = None,
        references: Tensor | None = None,
        reference_labels: Tensor | None = None,
        offset: int | None = None,
        *,
        relation: Relation | None = None,
        positive: Tensor | None = None,
        negative: Tensor | None = None,
    ) -> Source:
        """Check and normalise; without references the batch is compared with itself. See `Loss.forward`.

        Raises:
            InputError: shapes, types or the offset do not fit together.
        """
        _check_vectors("embeddings", embeddings)
        raw = at_least_float32(embeddings)
        if references is None:
            if reference_labels is not None or offset is not None:
                raise InputError("reference_labels and offset describe references, and no references are given")
            anchors = normalize(raw)
            source = cls(anchors, anchors, labels, labels, 0, relation, raw=raw)
        else:
            _check_vectors("references", references)
            _check_fit(embeddings, references, offset)
            dtype = torch.promote_types(embeddings.dtype, references.dtype)
            anchors, others = (normalize(at_least_float32(vectors.to(dtype))) for vectors in (embeddings, references))
            source = cls(anchors, others, labels, reference_labels, offset, relation, raw=raw)
        if positive is None:
            if negative is not None:
                raise InputError("negative is given without positive; give both masks, or labels")
            source._check_labels()
            source._check_offset()
            return source
        if labels is not None and (labels.ndim == 0 or len(labels) != len(anchors)):
            raise InputError(f"labels must be [{len(anchors)}], one for each embedding, not {list(labels.shape)}")
        return replace(source, masks=source._checked_masks(positive, negative))

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

    @property
    def columns(self) -> int:
        """How many references each anchor is compared with."""
        return len(self.references)

    @property
    def mean_length(self) -> float:
        """Anchors of a process, the mean over all that share the batch."""
        return len(self)

    @property
    def dim(self) -> int:
        """Dimension of the embeddings."""
        return self.anchors.shape[1]

    def among_references(self) -> Source:
        """All references against themselves, with the anchors in their places.

        Raises:
            InputError: the anchors are not among the references, or masks say nothing of the other references.
        """
        if self.references is self.anchors:
            return self
        if self.offset is None:
            raise InputError(
                "the loss is of samples and their neighbours: references must hold the embeddings, and offset say where"
            )
        if self.masks is not None and len(self) != self.columns:
            raise InputError(
                "the loss is one of all references among themselves, of which masks say too little; give labels"
            )
        before, after = self.references[: self.offset], self.references[self.offset + len(self) :]
        vectors = torch.cat([before, self.anchors, after])
        whole = replace(self, labels=self.reference_labels, offset=0, shared=False, raw=None)
        return replace(whole, anchors=vectors, references=vectors)

    def as_they_are(self) -> Source:
        """The anchors as they came, not normalised, compared with nothing yet.

        Raises:
            InputError: they are lost, as in a mixture.
        """
        if self.raw is None:
            raise InputError("the loss is of embeddings at their length, and only their directions are left")
        return replace(
            self, anchors=self.raw, references=self.raw, reference_labels=self.labels, offset=0, shared=False
        )

    def with_anchors(self, anchors: Tensor) -> Source:
        """The same with other vectors for the anchors, and for the references where they are the anchors."""
        alone = self.references is self.anchors
        return replace(self, anchors=anchors, references=anchors if alone else self.references, raw=None)

    def mean_similarity(self) -> Tensor:
        """The mean over all anchors and references, of all processes with as many each; a scalar."""
        return self.anchors.sum(dim=0) @ self.references.sum(dim=0) / (self.mean_length * self.columns)

    def class_columns(self) -> ClassColumns | None:
        """The columns of each class, where pairs are those of equal labels and it pays to know them.

        On a CPU masks over all columns cost more than the losses; on a GPU finding the columns would wait for it.
        """
        by_label = self.masks is None and self.relation is None and self.reference_labels is not None
        if not by_label or not can_look(self.anchors):
            return None
        assert self.reference_labels is not None
        return ClassColumns(self.reference_labels)

    def pairs(self, start: int, stop: int, columns: ClassColumns | None = None) -> Pairs:
        """Where the pairs of the anchors `start` to `stop` are; found by `columns` where they are given."""
        first = None if self.offset is None else self.offset + start
        if self.masks is not None:
            positive, negative = (mask[start:stop] for mask in self.masks)
            return MaskedPairs.without_self(positive, negative, first)
        assert self.labels is not None
        assert self.reference_labels is not None
        labels = self.labels[start:stop]
        if columns is not None:
            return columns.pairs(labels, first)
        relation = self.relation or _same_label
        positive = relation(labels, self.reference_labels)
        if positive.dtype != torch.bool or list(positive.shape) != [len(labels), self.columns]:
            wanted = f"bool [{len(labels)}, {self.columns}]"
            raise InputError(f"relation must give {wanted}, not {positive.dtype} {list(positive.shape)}")
        return MaskedPairs.without_self(positive, ~positive, first)

    def rows(self, start: int, similarity: Tensor, pairs: Pairs) -> Rows:
        """The similarities [rows, c] of the anchors from `start` on, as rows; may overwrite them."""
        positives, negatives = pairs.split(similarity)
        labels = None if self.labels is None else self.labels[start : start + len(similarity)]
        keys = torch.arange(start, start + len(similarity), device=similarity.device) + (self.offset or 0)
        if self.call is not None:
            keys = keys + (self.call << 32)
        return Rows(positives, negatives, labels, keys, self.dim)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that the similarities are made of; one where a batch is compared with itself."""
        return (self.anchors,) if self.references is self.anchors else (self.anchors, self.references)

    def similarity(self, start: int, stop: int) -> Tensor:
        """The similarities of the anchors `start` to `stop` to all references, [rows, columns]."""
        return self.anchors[start:stop] @ self.references.T

    def add_gradient(
        self,
        totals: Sequence[Tensor],
        by_positives: Tensor | None,
        by_negatives: Tensor | None,
        pairs: Pairs,
        start: int,
        stop: int,
    ) -> None:
        """Add to totals, one for each of `inputs`, their gradients from those by the anchors' pairs."""
        if by_negatives is None and isinstance(pairs, ClassPairs) and pairs.is_sparse(self.dim):
            to = totals[0][start:stop], totals[-1]
            pairs.add_products(by_positives, self.anchors[start:stop].detach(), self.references.detach(), to)
        else:
            self._add_products(totals, pairs.join(by_positives, by_negatives), start, stop)

    def _add_products(self, totals: Sequence[Tensor], by_similarity: Tensor, start: int, stop: int) -> None:
        anchors, references = self.anchors[start:stop].detach(), self.references.detach()
        one_input = len(self.inputs) == 1
        if one_input and len(anchors) == len(references):  # the whole matrix: one product in place of two
            totals[0].addmm_(by_similarity + by_similarity.T, references)
            return
        if self.anchors.requires_grad:
            totals[0][start:stop].addmm_(by_similarity, references)
        if self.references.requires_grad:
            totals[-1].addmm_(by_similarity.T, anchors)

    def _check_labels(self) -> None:
        if self.reference_labels is None and self.labels is not None:
            raise InputError("references are given without reference_labels; give one label a reference")
        for name, labels, of, vectors in (
            ("labels", self.labels, "embeddings", self.anchors),
            ("reference_labels", self.reference_labels, "references", self.references),
        ):
            if labels is None or labels.ndim == 0 or len(labels) != len(vectors):
                fits = False
            else:
                fits = self.relation is not None or (labels.ndim == 1 and _is_integer(labels))
            if not fits:
                got = "None" if labels is None else f"{labels.dtype} {list(labels.shape)}"
                raise InputError(f"{name} must be int [{len(vectors)}], one for each row of {of}, not {got}")

    def _check_offset(self) -> None:
        """An anchor's entry among the references must have its label, or it would be a pair of itself after all."""
        if self.offset is None or self.relation is not None or not can_look(self.anchors):
            return
        assert self.labels is not None
        assert self.reference_labels is not None
        own = self.reference_labels[self.offset : self.offset + len(self.labels)]
        if not torch.equal(self.labels.long(), own.long()):
            raise InputError(f"offset = {self.offset}: the labels of the anchors are not those of their references")

    def _checked_masks(self, positive: Tensor, negative: Tensor | None) -> tuple[Tensor, Tensor]:
        if self.relation is not None:
            raise InputError("relation and positive both say which pairs are positive; give one of them")
        if positive.dtype == torch.bool and negative is None:
            negative = ~positive
        shape = [len(self.anchors), len(self.references)]
        for name, mask in (("positive", positive), ("negative", negative)):
            if mask is not None and (mask.dtype != torch.bool or list(mask.shape) != shape):
                raise InputError(f"{name} must be bool {shape}, not {mask.dtype} {list(mask.shape)}")
        assert negative is not None
        if can_look(positive) and bool((positive & negative).any()):
            raise InputError("a pair is both in positive and in negative; it can be one of them or neither")
        return positive, negative


def _same_label(labels: Tensor, reference_labels: Tensor) -> Tensor:
    return labels[:, None] == reference_labels[None, :]


def _is_integer(labels: Tensor) -> bool:
    return not labels.is_floating_point() and not labels.is_complex()


def can_look(tensor: Tensor) -> bool:
    """Whether looking at numbers costs next to nothing: on a GPU it would wait for it, a compiled graph has none."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def _check_vectors(name: str, vectors: Tensor) -> None:
    if vectors.ndim != 2 or vectors.shape[1] == 0 or not vectors.is_floating_point():
        raise InputError(f"{name} must be float [n, d], not {vectors.dtype} {list(vectors.shape)}")


def _check_fit(embeddings: Tensor, references: Tensor, offset: int | None) -> None:
    if references.shape[1] != embeddings.shape[1]:
        raise InputError(f"embeddings have {embeddings.shape[1]} dimensions and references {references.shape[1]}")
    if offset is not None and not 0 <= offset <= len(references) - len(embeddings):
        raise InputError(f"offset = {offset} places {len(embeddings)} anchors outside the {len(references)} references")
