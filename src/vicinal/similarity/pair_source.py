"""Anchors, references, and which of their pairs are positive and negative: the input of every loss.

A :class:`PairSource` gives the similarities of any span of anchors as :class:`~vicinal.similarity.rows.Rows`.
:func:`vicinal.similarity.tiles.sum_over_rows` goes over a whole source tile by tile, and computes the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, cast

import torch
from torch import Tensor
from typing_extensions import Self

from vicinal.similarity.embeddings import (
    Relation,
    at_least_float32,
    check_batch,
    check_labels,
    check_masks,
    check_pair_labels,
    check_references,
    check_relation,
    check_tensor,
    normalize,
    signed_labels,
)
from vicinal.similarity.rows import ClassColumns, MaskedPairs, Pairs, Rows
from vicinal.utils import distributed
from vicinal.utils.errors import InputError

Observer = Callable[[Tensor, slice], None]
"""Reads the similarities [rows, c] of a span of anchors, which it must not change, except those of self-pairs."""


@dataclass(frozen=True)
class PairSource:
    """L2-normalized anchors and references, and which of their pairs are positive and negative.

    Use :meth:`from_batch` or :meth:`from_distributed_batch`, which check and normalize.

    Attributes:
        anchors: float [n, d].
        references: float [c, d]; the same tensor as `anchors` where a batch is compared with itself.
        labels: int [n], or [n, ...] with a relation; None with masks.
        reference_labels: the same for the references.
        offset: anchor i is reference `offset + i`; None: no anchor is among the references.
        relation: computes which pairs are positive, all others are negative; None: the pairs of equal labels.
        masks: the positive and the negative pairs, bool [n, c] each, in place of labels.
        is_distributed: whether the anchors are this process's part of a batch and the references all of it.
        num_calls: how often the loss was called, which changes its random choices; an int64 scalar, or None.
        unnormalized: the anchors before normalization, float [n, d] in at least float32, where they are known.
        unnormalized_references: the same for references that are not the anchors, float [c, d].
        features: the inputs that the embeddings of the anchors were computed from, float [n, f], where known.
    """

    anchors: Tensor
    references: Tensor
    labels: Tensor | None
    reference_labels: Tensor | None
    offset: int | None
    relation: Relation | None = None
    masks: tuple[Tensor, Tensor] | None = None
    is_distributed: bool = False
    num_calls: Tensor | None = None
    unnormalized: Tensor | None = None
    features: Tensor | None = None
    unnormalized_references: Tensor | None = None

    allows_sparse_gradient: ClassVar[bool] = True

    @classmethod
    def from_batch(
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
        features: Tensor | None = None,
    ) -> PairSource:
        """Check and normalize a batch. For the arguments see :meth:`vicinal.losses.Loss.forward`.

        Raises:
            InputError: Shapes, types or the offset do not match.

        Example:
            >>> source = PairSource.from_batch(torch.eye(3), torch.tensor([7, 7, 9]))
            >>> len(source), source.num_references, source.offset
            (3, 3, 0)
        """
        check_batch(embeddings, features)
        if relation is not None and not callable(relation):
            raise InputError(f"relation must be a function of two tensors of labels, not {type(relation).__name__}")
        labels, reference_labels = signed_labels(labels, reference_labels)
        if references is None:
            if reference_labels is not None or offset is not None:
                raise InputError("reference_labels and offset describe references, and no references are given")
            vectors, other = at_least_float32(embeddings), None
            reference_labels, offset = labels, 0
        else:
            check_references(embeddings, references, offset)
            dtype = torch.promote_types(embeddings.dtype, references.dtype)
            vectors, other = (at_least_float32(x.to(dtype)) for x in (embeddings, references))
        anchors = normalize(vectors)
        source = cls(
            anchors,
            anchors if other is None else normalize(other),
            labels,
            reference_labels,
            offset,
            relation,
            unnormalized=vectors,
            features=features,
            unnormalized_references=other,
        )
        if positive is not None:
            return source._with_masks(positive, negative)
        if negative is not None:
            raise InputError("negative is given without positive; give both masks, or labels")
        shape = [len(anchors), len(source.references)]
        check_pair_labels(labels, reference_labels, shape, offset, relation, anchors.device)
        return source

    @classmethod
    def from_distributed_batch(cls, embeddings: Tensor, labels: Tensor, features: Tensor | None = None) -> PairSource:
        """Compare this process's part of a batch with the parts of all processes, gathered with their gradients.

        The mean over processes of a loss and of its gradients is then that of the whole batch in one process.

        Args:
            embeddings: float [n, d], with the same n on every process.
            labels: int [n].
            features: float [n, f], of this process, for losses that use them.

        Raises:
            InputError: shapes or types do not match, or the processes have batches of different sizes.
        """
        if distributed.world_size() == 1:
            return cls.from_batch(embeddings, labels, features=features)
        check_batch(embeddings, features)
        check_labels("labels", labels, "embeddings", len(embeddings), None, embeddings.device)
        labels = cast(Tensor, signed_labels(labels)[0])
        references, reference_labels = distributed.all_gather_labeled(embeddings, labels)
        offset = distributed.rank() * len(labels)
        source = cls.from_batch(embeddings, labels, references, reference_labels, offset, features=features)
        return replace(source, is_distributed=True)

    def __len__(self) -> int:
        return len(self.anchors)

    @property
    def num_references(self) -> int:
        """Number of references that each anchor is compared with."""
        return len(self.references)

    @property
    def shape(self) -> list[int]:
        """Number of anchors and of references."""
        return [len(self), self.num_references]

    @property
    def is_empty(self) -> bool:
        """Whether anchors or references are missing."""
        return 0 in self.shape

    @property
    def mean_num_anchors(self) -> float:
        """Number of anchors of a process, averaged over the processes of a distributed batch."""
        return len(self)

    @property
    def dim(self) -> int:
        """Dimension of the embeddings."""
        return self.anchors.shape[1]

    @property
    def is_by_label(self) -> bool:
        """Whether the positive pairs are those of equal labels."""
        return self.masks is None and self.relation is None

    @property
    def has_own_references(self) -> bool:
        """Whether the anchors are compared with references that are not from their batch."""
        return self.references is not self.anchors and not self.is_distributed

    def references_as_batch(self) -> PairSource:
        """Return a source that compares all references with one another, the anchors among them.

        Raises:
            InputError: the anchors are not among the references, or there are masks, which do not cover all of its
                pairs.
        """
        if self.references is self.anchors:
            return self
        if self.offset is None:
            raise InputError(
                "this loss compares all references with one another: the references must contain the embeddings, and "
                "offset must say where"
            )
        if self.masks is not None and len(self) != self.num_references:
            raise InputError(
                "this loss compares all references with one another, and the masks do not cover their pairs; give "
                "labels"
            )
        before, after = self.references[: self.offset], self.references[self.offset + len(self) :]
        vectors = torch.cat([before, self.anchors, after])
        return replace(
            self,
            anchors=vectors,
            references=vectors,
            labels=self.reference_labels,
            offset=0,
            is_distributed=False,
            unnormalized=None,
            features=None,
            unnormalized_references=None,
        )

    def without_normalization(self) -> PairSource:
        """Return a source of the embeddings of the anchors before normalization, without other references.

        Raises:
            InputError: they are not known, as in a mixture.
        """
        vectors = self.unnormalized
        if vectors is None:
            raise InputError("this loss uses the embeddings before normalization, which are not known here")
        return replace(
            self,
            anchors=vectors,
            references=vectors,
            reference_labels=self.labels,
            offset=0,
            is_distributed=False,
            unnormalized_references=None,
        )

    def with_anchors(self, anchors: Tensor) -> Self:
        """Return the same source with other anchors, and with other references where these are the anchors."""
        references = anchors if self.references is self.anchors else self.references
        return replace(self, anchors=anchors, references=references, unnormalized=None, features=None)

    def with_embeddings(self, embeddings: Tensor) -> Self:
        """Return the same source with other embeddings of its batch, float [n, d], in place of anchors and references.

        Raises:
            InputError: there are references that are not from the batch.
        """
        if self.has_own_references:
            raise InputError("embeddings of a batch do not replace references that are not from the batch")
        unnormalized = at_least_float32(embeddings)
        anchors = references = normalize(unnormalized)
        gathered = distributed.all_gather(unnormalized) if self.is_distributed else None
        if gathered is not None:
            references = normalize(gathered)
        return replace(
            self,
            anchors=anchors,
            references=references,
            unnormalized=unnormalized,
            features=None,
            unnormalized_references=gathered,
        )

    def prefix(self, dim: int) -> Self:
        """Return the same source with the first dimensions of anchors and references, which are normalized again.

        Example:
            >>> source = PairSource.from_batch(torch.tensor([[3.0, 4.0, 12.0]]), torch.tensor([7]))
            >>> source.prefix(2).anchors
            tensor([[0.6000, 0.8000]])
        """
        unnormalized = (self.anchors if self.unnormalized is None else self.unnormalized)[:, :dim]
        anchors = references = normalize(unnormalized)
        others = None
        if self.references is not self.anchors:
            known = self.unnormalized_references
            others = (self.references if known is None else known)[:, :dim]
            references = normalize(others)
        return replace(
            self, anchors=anchors, references=references, unnormalized=unnormalized, unnormalized_references=others
        )

    def mean_similarity(self) -> Tensor:
        """The mean over all pairs of an anchor and a reference; a scalar."""
        return self.anchors.sum(dim=0) @ self.references.sum(dim=0) / (self.mean_num_anchors * self.num_references)

    def tile(self, span: slice, observers: Sequence[Observer] = ()) -> tuple[Rows, Pairs]:
        """The rows of a span of anchors, and where their pairs are.

        Args:
            span: the anchors, `slice(start, stop)`.
            observers: read the similarities before they become rows.
        """
        similarity = self.similarity(span)
        for observe in observers:
            observe(similarity, span)
        # The size of the largest class must be known, which the compiler cannot wait for.
        pairs = self.pairs(span, by_class=not torch.compiler.is_compiling())
        (positives, negatives), (labels, keys, dim) = pairs.split(similarity), self.identities(span)
        return Rows(positives, negatives, labels, keys, dim), pairs

    def identities(self, span: slice) -> tuple[Tensor | None, Tensor, int]:
        """The labels, keys and dimension of the rows of a span of anchors, as :class:`Rows` has them."""
        labels = None if self.labels is None else self.labels[span]
        keys = torch.arange(span.start, span.stop, device=self.anchors.device) + (self.offset or 0)
        if self.num_calls is not None:
            keys = keys + (self.num_calls << 32)
        return labels, keys, self.dim

    @cached_property
    def class_columns(self) -> ClassColumns | None:
        """The columns of each class, where positive pairs are those of equal labels.

        Masks over all columns cost more memory traffic than the losses. For the size of the largest class the host
        waits once for a GPU.
        """
        if not self.is_by_label or self.labels is None or self.reference_labels is None:
            return None
        return ClassColumns(self.reference_labels, self.labels)

    def pairs(self, span: slice, by_class: bool = False) -> Pairs:
        """Where the pairs of a span of anchors are.

        Args:
            span: the anchors, `slice(start, stop)`.
            by_class: whether the positives of equal labels are found by :attr:`class_columns` instead of masks.
        """
        first = None if self.offset is None else self.offset + span.start
        if self.masks is not None:
            positive, negative = (mask[span] for mask in self.masks)
            return MaskedPairs.without_self(positive, negative, first)
        assert self.labels is not None
        assert self.reference_labels is not None
        labels = self.labels[span]
        if by_class and self.class_columns is not None:
            return self.class_columns.pairs(labels, first)
        positive = (self.relation or _same_label)(labels, self.reference_labels)
        check_relation(positive, [len(labels), self.num_references], self.anchors.device)
        return MaskedPairs.without_self(positive, ~positive, first)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The tensors that the similarities are computed from; one where a batch is its own reference."""
        return (self.anchors,) if self.references is self.anchors else (self.anchors, self.references)

    def similarity(self, span: slice) -> Tensor:
        """The similarities of a span of anchors to all references, [rows, c]."""
        return self.anchors[span] @ self.references.T

    def add_gradient(self, totals: Sequence[Tensor], span: slice, grad_similarity: Tensor) -> None:
        """Add the gradient with respect to each of `inputs` to `totals`, from that of :meth:`similarity`, [rows, c]."""
        anchors, references = self.anchors[span].detach(), self.references.detach()
        if len(self.inputs) == 1 and len(anchors) == len(references):  # the whole matrix: one product instead of two
            totals[0].addmm_(grad_similarity + grad_similarity.T, references)
            return
        if self.anchors.requires_grad:
            totals[0][span].addmm_(grad_similarity, references)
        if self.references.requires_grad:
            totals[-1].addmm_(grad_similarity.T, anchors)

    def _with_masks(self, positive: Tensor, negative: Tensor | None) -> PairSource:
        if self.labels is not None:
            check_tensor("labels", self.labels, self.anchors.device)
        if self.labels is not None and (self.labels.ndim == 0 or len(self.labels) != len(self)):
            raise InputError(f"labels must be [{len(self)}], one for each embedding, not {list(self.labels.shape)}")
        if self.relation is not None:
            raise InputError("relation and positive both define the positive pairs; give one of them")
        return replace(self, masks=check_masks(positive, negative, self.shape, self.anchors.device))


def _same_label(labels: Tensor, reference_labels: Tensor) -> Tensor:
    return labels[:, None] == reference_labels[None, :]
