"""The first dimensions of embeddings, and whether a model was trained to be used with them alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from vicinal.utils.arguments import check_positive_integer
from vicinal.utils.arrays import Floats
from vicinal.utils.errors import InputError


def shortened(vectors: Floats, dim: int | None) -> Floats:
    """Return the first dimensions of embeddings, L2-normalized; a zero vector stays zero.

    Args:
        vectors: float32 [n, d].
        dim: number of dimensions to keep; None: all, as they are.

    Returns:
        float32 [n, dim].

    Raises:
        InputError: `dim` is below 1, or above d.

    Example:
        >>> shortened(np.array([[0.36, 0.48, 0.8]], np.float32), 2).round(4)
        array([[0.6, 0.8]], dtype=float32)
    """
    if dim is None:
        return vectors
    check_dim(dim, vectors.shape[1])
    first = vectors[:, :dim]
    lengths = np.linalg.norm(first, axis=1, keepdims=True)
    return np.divide(first, lengths, out=np.zeros_like(first), where=lengths > 0)


def check_dim(dim: int, full_dim: int) -> None:
    """Raise InputError if embeddings of `full_dim` dimensions do not have `dim` first ones."""
    check_positive_integer(shortened, dim=dim)
    if dim > full_dim:
        raise InputError(f"dim = {dim} is more than the embeddings have, {full_dim} dimensions")


def trained_dims(recipe: Mapping[str, Any]) -> list[int]:
    """The dimensions of the prefixes that a model was trained for by :class:`~vicinal.matryoshka.Matryoshka`.

    Args:
        recipe: of the model, which names the loss; empty if unknown.

    Example:
        >>> trained_dims({"loss": {"class_path": "Matryoshka", "init_args": {"dims": [32, 64]}}})
        [32, 64]
        >>> trained_dims({})
        []
    """
    return sorted({dim for dim in _matryoshka_dims(recipe.get("loss")) if isinstance(dim, int)})


def _matryoshka_dims(value: object) -> Iterator[object]:
    """All `dims` of the Matryoshka losses in a setting."""
    if isinstance(value, Mapping):
        arguments = value.get("init_args")
        is_named = str(value.get("class_path")).rpartition(".")[2] == "Matryoshka"
        if is_named and isinstance(arguments, Mapping) and isinstance(arguments.get("dims"), list):
            yield from arguments["dims"]
    nested = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for each in nested:
        yield from _matryoshka_dims(each)
