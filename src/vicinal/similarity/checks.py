"""Checks of the tensors that a loss is called with; each raises InputError with name, type and shape of the tensor."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vicinal.utils.arguments import is_integer
from vicinal.utils.errors import InputError

Relation = Callable[[Tensor, Tensor], Tensor]
"""A function that says which pairs are positive.

Its arguments are the labels of anchors, `[rows, ...]`, and of references, `[columns, ...]`; it returns bool
`[rows, columns]`.
"""


def can_read_values(tensor: Tensor) -> bool:
    """Whether reading the values of a tensor neither synchronizes with a GPU nor breaks a graph of `torch.compile`."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


def check_tensor(name: str, value: object, device: torch.device | None = None) -> None:
    """A value must be a dense tensor with values, on the device of the embeddings if that is given."""
    if not isinstance(value, Tensor):
        raise InputError(f"{name} must be a tensor, not {type(value).__name__}; convert it with torch.as_tensor")
    if value.layout != torch.strided or value.device.type == "meta":
        found = "on the device meta, without values" if value.device.type == "meta" else str(value.layout)
        raise InputError(f"{name} must be a dense tensor, not {found}")
    if device is not None and value.device != device:
        raise InputError(f"{name} must be on {device}, as the embeddings are, not on {value.device}")


def check_embeddings(name: str, embeddings: Tensor, device: torch.device | None = None) -> None:
    """Embeddings must be float [n, d] with d > 0, on a device if that is given."""
    check_tensor(name, embeddings, device)
    if embeddings.ndim != 2 or embeddings.shape[1] == 0 or not embeddings.is_floating_point():
        raise InputError(f"{name} must be float [n, d], not {embeddings.dtype} {list(embeddings.shape)}")


def check_features(features: Tensor | None, embeddings: Tensor) -> None:
    """Features must be float [n, f], one row for each of the embeddings [n, d]; None is allowed."""
    if features is None:
        return
    check_embeddings("features", features, embeddings.device)
    if len(features) != len(embeddings):
        raise InputError(
            f"features must be float [{len(embeddings)}, f], one row for each embedding, not {list(features.shape)}"
        )


def check_finite(embeddings: Tensor) -> None:
    """Check that embeddings have neither NaN nor infinity; a loss of such embeddings is NaN without a message.

    No loss calls it, because reading the answer waits for a GPU: call it yourself where that does not matter, for
    example in the first epochs or when a loss became NaN.

    Args:
        embeddings: float [n, d].

    Raises:
        InputError: a row is not finite; the message names the first one and their number.

    Example:
        >>> check_finite(torch.tensor([[1.0, 2.0], [torch.nan, 0.0]]))
        Traceback (most recent call last):
        vicinal.utils.errors.InputError: embeddings: row 1 is not finite (1 of 2 rows)
    """
    check_embeddings("embeddings", embeddings)
    rows = (~embeddings.isfinite().all(dim=1)).nonzero().flatten().tolist()
    if rows:
        raise InputError(f"embeddings: row {rows[0]} is not finite ({len(rows)} of {len(embeddings)} rows)")


def check_references(embeddings: Tensor, references: Tensor, offset: int | None) -> None:
    """References must have the dimension of the embeddings and, with an offset, contain a row for each of them."""
    check_embeddings("references", references, embeddings.device)
    if references.shape[1] != embeddings.shape[1]:
        raise InputError(f"embeddings have {embeddings.shape[1]} dimensions and references {references.shape[1]}")
    if offset is not None and not is_integer(offset):
        raise InputError(f"offset = {offset!r} must be a whole number, or None")
    if offset is not None and not 0 <= offset <= len(references) - len(embeddings):
        raise InputError(f"offset = {offset} places {len(embeddings)} anchors outside the {len(references)} references")


def check_labels(
    name: str, labels: Tensor | None, rows_of: str, length: int, relation: Relation | None, device: torch.device
) -> None:
    """Labels must be int [length] on a device; with a relation they may have any type, device and more dimensions."""
    if labels is not None:
        check_tensor(name, labels, device if relation is None else None)
    if labels is not None and labels.ndim > 0 and len(labels) == length:
        is_integer = not labels.is_floating_point() and not labels.is_complex()
        if relation is not None or (labels.ndim == 1 and is_integer):
            return
    got = "None" if labels is None else f"{labels.dtype} {list(labels.shape)}"
    raise InputError(f"{name} must be int [{length}], one for each row of {rows_of}, not {got}")


def check_relation(positive: object, shape: list[int], device: torch.device) -> None:
    """What a relation returns must be a bool mask on a device."""
    check_tensor("the result of relation", positive, device)
    assert isinstance(positive, Tensor)
    if positive.dtype != torch.bool or list(positive.shape) != shape:
        raise InputError(f"relation must return bool {shape}, not {positive.dtype} {list(positive.shape)}")


def signed_labels(labels: Tensor | None) -> Tensor | None:
    """Labels of unsigned types, for which torch has few operations, as int64; distinct labels stay distinct."""
    is_unsigned = isinstance(labels, Tensor) and labels.dtype in (torch.uint16, torch.uint32, torch.uint64)
    return labels.long() if labels is not None and is_unsigned else labels


def check_offset_labels(labels: Tensor, reference_labels: Tensor, offset: int) -> None:
    """The references that are the anchors must have their labels, or an anchor could be a pair of itself."""
    own = reference_labels[offset : offset + len(labels)]
    if not torch.equal(labels.long(), own.long()):
        raise InputError(f"offset = {offset}: the labels of the anchors are not those of their references")


def check_masks(
    positive: Tensor, negative: Tensor | None, shape: list[int], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Both masks must be bool, disjoint and on a device; without `negative` all pairs that are not positive are."""
    check_tensor("positive", positive, device)
    if positive.dtype == torch.bool and negative is None:
        negative = ~positive
    for name, mask in (("positive", positive), ("negative", negative)):
        if mask is not None:
            check_tensor(name, mask, device)
        if mask is not None and (mask.dtype != torch.bool or list(mask.shape) != shape):
            raise InputError(f"{name} must be bool {shape}, not {mask.dtype} {list(mask.shape)}")
    assert negative is not None
    if can_read_values(positive) and bool((positive & negative).any()):
        raise InputError("a pair is marked in positive and in negative; mark it in one of them or in neither")
    return positive, negative
