"""Embeddings and labels before they are compared: their checks, and the normalization of embeddings.

Each check raises InputError with name, type and shape of the tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vicinal.utils.arguments import is_integer
from vicinal.utils.errors import InputError

Relation = Callable[[Tensor, Tensor], Tensor]
"""A function that says which pairs are positive.

Its arguments are the labels of anchors, `[rows, ...]`, and of references, `[columns, ...]`; it returns bool
`[rows, columns]`.
"""
MIN_NORM = 1e-12
"""Vectors whose entries are all below it are divided by it instead of their norm."""
MIN_GRADIENT_NORM = 1e-3
"""The derivative of the normalization of a shorter vector is that of a vector of this norm in the same direction."""


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


def check_batch(embeddings: Tensor, features: Tensor | None) -> None:
    """Embeddings must be float [n, d], and features, if any, float [n, f], one row for each embedding."""
    check_embeddings("embeddings", embeddings)
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


def check_label_range(name: str, labels: Tensor, num_classes: int) -> None:
    """Labels must be in 0 ... num_classes - 1; not checked on a GPU, where the host would have to wait."""
    if can_read_values(labels) and len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise InputError(
            f"{name}: labels from {int(labels.min())} to {int(labels.max())} are not all in 0 ... {num_classes - 1} "
            f"(num_classes = {num_classes})"
        )


def check_relation(positive: object, shape: list[int], device: torch.device) -> None:
    """The result of a relation must be a bool mask on a device."""
    check_tensor("the result of relation", positive, device)
    assert isinstance(positive, Tensor)
    if positive.dtype != torch.bool or list(positive.shape) != shape:
        raise InputError(f"relation must return bool {shape}, not {positive.dtype} {list(positive.shape)}")


def signed_labels(*labels: Tensor | None) -> list[Tensor | None]:
    """Labels of unsigned types, for which torch has few operations, as int64; distinct labels stay distinct."""
    unsigned = (torch.uint16, torch.uint32, torch.uint64)
    return [each.long() if isinstance(each, Tensor) and each.dtype in unsigned else each for each in labels]


def check_pair_labels(
    labels: Tensor | None,
    reference_labels: Tensor | None,
    shape: list[int],
    offset: int | None,
    relation: Relation | None,
    device: torch.device,
) -> None:
    """Check the labels of n anchors and c references; anchors must have the same labels as references.

    Otherwise an anchor could be a pair of itself.
    """
    if reference_labels is None and labels is not None:
        raise InputError("references are given without reference_labels; give one label per reference")
    check_labels("labels", labels, "embeddings", shape[0], relation, device)
    check_labels("reference_labels", reference_labels, "references", shape[1], relation, device)
    if offset is None or relation is not None or device.type != "cpu" or torch.compiler.is_compiling():
        return
    assert labels is not None
    assert reference_labels is not None
    own = reference_labels[offset : offset + len(labels)]
    if not torch.equal(labels.long(), own.long()):
        raise InputError(f"offset = {offset}: the labels of the anchors are not those of their references")


def check_masks(
    positive: Tensor, negative: Tensor | None, shape: list[int], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Both masks must be bool, disjoint and on a device; `negative` defaults to all pairs that are not positive."""
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


def normalize(vectors: Tensor) -> Tensor:
    """L2-normalize the rows of a float tensor [n, d] without overflow or underflow; a zero row stays zero.

    Rows are first divided by their largest absolute entry, so that squares of very large or very small entries neither
    overflow nor underflow. Rows whose entries are all below 1e-12 are divided by 1e-12 instead of their norm.

    The gradient with respect to x is ``(g - u (u g)) / max(|x|, 1e-3)`` with u the result and g the gradient with
    respect to it; without ``u (u g)`` for rows whose entries are all below 1e-12. For rows of norm 1e-3 or more this is
    the derivative. The derivative grows as 1 / norm and does not exist at zero, so that without the bound the gradient
    of one zero row would exceed all others by orders of magnitude and be infinite in float16. The gradient of a zero
    row is not zero, so that training can move it.

    Example:
        >>> x = torch.tensor([[3.0, 4.0], [0.0, 0.0], [3e30, 4e30]], requires_grad=True)
        >>> normalize(x).detach()
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000],
                [0.6000, 0.8000]])
        >>> normalize(x)[1, 0].backward()
        >>> x.grad[1].round()
        tensor([1000.,    0.])
    """
    return _normalize_unfused(vectors) if torch.compiler.is_compiling() else _Normalize.apply(vectors)


def _unit_rows(vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The normalized rows, and the two numbers that each was divided by in turn."""
    largest = vectors.detach().abs().amax(dim=-1, keepdim=True)
    scaled = vectors / largest.clamp_min(MIN_NORM)
    norm = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True).masked_fill(largest < MIN_NORM, 1.0)
    return scaled / norm, largest, norm


def _normalize_unfused(vectors: Tensor) -> Tensor:
    """The same as `_Normalize` in plain operations, which the compiler fuses."""
    unit, largest, norm = _unit_rows(vectors.detach())
    zero = (vectors - vectors.detach()) / norm / largest.maximum(MIN_GRADIENT_NORM / norm)  # adds only its gradient
    along = (unit * zero).sum(dim=-1, keepdim=True).masked_fill(largest < MIN_NORM, 0.0)
    return unit + (zero - unit * along)


class _Normalize(torch.autograd.Function):
    """Saves only the result for the backward pass, which then has fewer steps than that of the separate operations."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        unit, largest, norm = _unit_rows(vectors)
        ctx.save_for_backward(unit, largest, norm)
        return unit

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> Tensor:
        unit, largest, norm = ctx.saved_tensors
        with torch.autocast(unit.device.type, enabled=False):  # backward may run under autocast
            along = torch.linalg.vecdot(unit, upstream)[..., None].masked_fill(largest < MIN_NORM, 0.0)
        divisor = largest.maximum(MIN_GRADIENT_NORM / norm)
        return torch.addcmul(upstream, unit, along, value=-1).div_(norm).div_(divisor)


def at_least_float32(tensor: Tensor) -> Tensor:
    """Convert a tensor to float32, unless it is float64."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
