"""Checks of the tensors that a loss is called with; each raises InputError with name, type and shape of the tensor."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vicinal.utils.errors import InputError

Relation = Callable[[Tensor, Tensor], Tensor]
"""A function that says which pairs are positive.

Its arguments are the labels of anchors, `[rows, ...]`, and of references, `[columns, ...]`; it returns bool
`[rows, columns]`.
"""


def can_read_values(tensor: Tensor) -> bool:
    """Whether reading the values of a tensor neither synchronises with a GPU nor breaks a graph of `torch.compile`."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def check_embeddings(name: str, embeddings: Tensor) -> None:
    """Embeddings must be float [n, d] with d > 0."""
    if embeddings.ndim != 2 or embeddings.shape[1] == 0 or not embeddings.is_floating_point():
        raise InputError(f"{name} must be float [n, d], not {embeddings.dtype} {list(embeddings.shape)}")


def check_references(embeddings: Tensor, references: Tensor, offset: int | None) -> None:
    """References must have the dimension of the embeddings and, with an offset, contain a row for each of them."""
    check_embeddings("references", references)
    if references.shape[1] != embeddings.shape[1]:
        raise InputError(f"embeddings have {embeddings.shape[1]} dimensions and references {references.shape[1]}")
    if offset is not None and not 0 <= offset <= len(references) - len(embeddings):
        raise InputError(f"offset = {offset} places {len(embeddings)} anchors outside the {len(references)} references")


def check_labels(name: str, labels: Tensor | None, rows_of: str, length: int, relation: Relation | None) -> None:
    """Labels must be int [length]; with a relation they may have any type and more dimensions."""
    if labels is not None and labels.ndim > 0 and len(labels) == length:
        is_integer = not labels.is_floating_point() and not labels.is_complex()
        if relation is not None or (labels.ndim == 1 and is_integer):
            return
    got = "None" if labels is None else f"{labels.dtype} {list(labels.shape)}"
    raise InputError(f"{name} must be int [{length}], one for each row of {rows_of}, not {got}")


def check_offset_labels(labels: Tensor, reference_labels: Tensor, offset: int) -> None:
    """The references that are the anchors must have their labels, or an anchor could be a pair of itself."""
    own = reference_labels[offset : offset + len(labels)]
    if not torch.equal(labels.long(), own.long()):
        raise InputError(f"offset = {offset}: the labels of the anchors are not those of their references")


def check_masks(positive: Tensor, negative: Tensor | None, shape: list[int]) -> tuple[Tensor, Tensor]:
    """Both masks must be bool and disjoint; without a negative one, all pairs that are not positive are negative."""
    if positive.dtype == torch.bool and negative is None:
        negative = ~positive
    for name, mask in (("positive", positive), ("negative", negative)):
        if mask is not None and (mask.dtype != torch.bool or list(mask.shape) != shape):
            raise InputError(f"{name} must be bool {shape}, not {mask.dtype} {list(mask.shape)}")
    assert negative is not None
    if can_read_values(positive) and bool((positive & negative).any()):
        raise InputError("a pair is marked in positive and in negative; mark it in one of them or in neither")
    return positive, negative
