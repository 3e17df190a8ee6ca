"""The layers after the pooling, and the first dimensions of embeddings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from vicinal.data.whitening_files import read_whitening
from vicinal.models.execution import unit_vectors
from vicinal.models.model_folder import MAX_DIM
from vicinal.similarity.embeddings import at_least_float32
from vicinal.utils.arguments import check_positive_integer, given, is_number, shown
from vicinal.utils.arrays import Floats
from vicinal.utils.errors import InputError

NormName = Literal["layer", "layer_affine", "l2", "none"]
"""The names of normalizations of the pooled features; see :func:`build_head`."""


class L2Norm(nn.Module):
    """Divides vectors by their L2 norm.

    Example:
        >>> L2Norm()(torch.tensor([[3.0, 4.0]]))
        tensor([[0.6000, 0.8000]])
    """

    def forward(self, vectors: Tensor) -> Tensor:
        """Vectors [n, d] -> vectors [n, d] of norm 1, in at least float32."""
        return unit_vectors(at_least_float32(vectors), self.training)


def check_head(dim: int | None, norm: str, dropout: float, projector: int | None, hidden: int | None = None) -> None:
    """Raise InputError if an argument is invalid; before the backbone is created, which may be downloaded."""
    for name, width in given(dim=dim, hidden=hidden, projector=projector).items():
        if not isinstance(width, int) or isinstance(width, bool) or not 1 <= width <= MAX_DIM:
            raise InputError(f"{name} is {shown(width)}; it must be an integer from 1 to {MAX_DIM:,}")
    if hidden is not None and dim is None:
        raise InputError(f"hidden is {hidden}; it must be left out without dim, as there is no layer after it")
    if norm not in ("layer", "layer_affine", "l2", "none"):
        raise InputError(f"norm: {shown(norm)} is unknown; choose layer, layer_affine, l2 or none")
    if not is_number(dropout) or not 0 <= dropout < 1:
        raise InputError(f"dropout is {shown(dropout)}; it must be a number from 0 to below 1")


def build_head(
    num_features: int, dim: int | None, norm: NormName, dropout: float = 0.0, hidden: int | None = None
) -> nn.Sequential:
    """Create the head: normalization, linear layer or MLP, dropout.

    Args:
        num_features: Number of channels of the pooled features.
        dim: Width of the linear layer; None: there is no linear layer.
        norm: ``layer``, ``layer_affine`` (with weight and bias), ``l2`` or ``none``.
        dropout: Probability of dropout.
        hidden: Width of a hidden layer with ReLU; None: there is none.

    Example:
        >>> build_head(96, 8, "none")(torch.zeros(2, 96)).shape
        torch.Size([2, 8])
    """
    layers = nn.Identity() if dim is None else _build_layers(num_features, dim, hidden)
    return nn.Sequential(_build_norm(norm, num_features), layers, nn.Dropout(dropout))


def _build_layers(num_features: int, dim: int, hidden: int | None) -> nn.Module:
    if hidden is None:
        return nn.Linear(num_features, dim)
    return nn.Sequential(nn.Linear(num_features, hidden), nn.ReLU(), nn.Linear(hidden, dim))


def _build_norm(norm: NormName, num_features: int) -> nn.Module:
    if norm.startswith("layer"):
        return nn.LayerNorm(num_features, elementwise_affine=norm == "layer_affine")
    return L2Norm() if norm == "l2" else nn.Identity()


@torch.no_grad()
def set_to_whitening(linear: nn.Module, path: str | Path) -> None:
    """Set a linear layer to the map of a whitening, ``(x - mean) @ components.T / sqrt(explained_variance)``."""
    try:
        arrays = {name: torch.from_numpy(array) for name, array in read_whitening(path).items()}
    except InputError as error:
        raise InputError(f"head_whitening: {error}") from None
    dim, width = arrays["components"].shape
    if isinstance(linear, nn.Sequential):
        raise InputError("head_whitening needs one linear layer; leave out hidden")
    if not isinstance(linear, nn.Linear):
        raise InputError(f"head_whitening needs a linear layer, which the model does not have; set dim to {dim}")
    if (width, dim) != (linear.in_features, linear.out_features):
        raise InputError(
            f"head_whitening: {path} maps {width} dimensions to {dim}, and the linear layer {linear.in_features} to "
            f"{linear.out_features}; learn it on the pooled features of this backbone, and set dim to its dimension"
        )
    weight = arrays["components"] / arrays["explained_variance"].sqrt()[:, None]
    linear.weight.copy_(weight)
    linear.bias.copy_(-weight @ arrays["mean"])


@torch.no_grad()
def set_to_attenuated_whitening(linear: nn.Linear, features: Tensor) -> None:
    """Set a linear layer to an attenuated whitening, ``(x - mean) @ components.T / variance ** (1 / 8)``.

    Whitening divides each principal component by its standard deviation, attenuated whitening by a root of that
    (Tolias et al., "Learning and aggregating deep local descriptors for instance-level search", ECCV 2020). The fourth
    root was no worse than the features themselves on any of four data sets, the square root was on one. A tenth of the
    mean variance is added to each variance, because the small ones are estimated from few images. The rows of the
    weight have norm 1 on average; those beyond the number of inputs are zero.

    Args:
        linear: The layer.
        features: Inputs of the layer, [n, in_features].
    """
    mean = features.double().mean(dim=0)
    centered = features.double() - mean
    variances, components = torch.linalg.eigh(centered.T @ centered / len(features))  # by rising variance
    scales = (variances.clamp_min(0) + variances.mean() / 10 + 1e-12) ** -0.125
    rows = (components * scales).T.flip(0)[: linear.out_features]
    rows /= rows.norm(dim=1).mean()
    linear.weight.zero_()
    linear.weight[: len(rows)] = rows.to(linear.weight)
    linear.bias.copy_(-linear.weight @ mean.to(linear.weight))


def shortened(vectors: Floats, dim: int | None) -> Floats:
    """Return the first dimensions of embeddings, L2-normalized; a zero vector stays zero.

    Args:
        vectors: float32 [n, d].
        dim: number of dimensions to keep; None: all, as they are.

    Returns:
        float32 [n, dim].
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
        raise InputError(f"dim = {dim} exceeds those of the embeddings, {full_dim} dimensions")


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
