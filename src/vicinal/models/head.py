"""The layers after the backbone: pooling, normalization and linear layers; and the first dimensions of embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from vicinal.data.whitening_files import read_whitening
from vicinal.models.execution import unit_vectors
from vicinal.models.model_folder import MAX_DIM
from vicinal.similarity.embeddings import at_least_float32
from vicinal.utils.arguments import check_positive_integer, given, is_number, shown
from vicinal.utils.arrays import Floats
from vicinal.utils.errors import InputError, prefixed_errors

MIN_P, MAX_P, MIN_EPS = 1e-3, 1e4, 1e-30

PoolingName = Literal["avg", "max", "gem", "avg+max", "token", "backbone", "projection"]
"""The names of poolings; see :func:`~vicinal.models.build_pooling`."""
NormName = Literal["layer", "layer_affine", "l2", "none"]
"""The names of normalizations of the pooled features; see :func:`build_head`."""


class AvgPool(nn.Module):
    """Mean over positions.

    Example:
        >>> AvgPool()(torch.tensor([[[[1.0, 3.0], [5.0, 7.0]]]]))
        tensor([[4.]])
    """

    def forward(self, maps: Tensor) -> Tensor:
        """Maps [n, C, H, W] -> vectors [n, C]."""
        return maps.mean(dim=(-2, -1))


class MaxPool(nn.Module):
    """Maximum over positions.

    Example:
        >>> MaxPool()(torch.tensor([[[[1.0, 3.0], [5.0, 7.0]]]]))
        tensor([[7.]])
    """

    def forward(self, maps: Tensor) -> Tensor:
        """Maps [n, C, H, W] -> vectors [n, C]."""
        return maps.amax(dim=(-2, -1))


class AvgMaxPool(nn.Module):
    """Mean over positions plus maximum over positions.

    The two are added, as in the published code of Proxy-Anchor (Kim et al., CVPR 2020), so that the number of channels
    is the same as for the other poolings.

    Example:
        >>> AvgMaxPool()(torch.tensor([[[[1.0, 3.0], [5.0, 7.0]]]]))
        tensor([[11.]])
    """

    def forward(self, maps: Tensor) -> Tensor:
        """Maps [n, C, H, W] -> vectors [n, C]."""
        return maps.mean(dim=(-2, -1)) + maps.amax(dim=(-2, -1))


class GeM(nn.Module):
    """Generalized mean over positions: ``(mean_x max(x, eps)^p)^(1/p)``, with one exponent for all channels.

    p = 1 is the mean of the positive parts, p -> infinity the maximum. It is computed in at least float32 and relative
    to the largest value, so that no power overflows, regardless of the precision of the maps.

    Reference: Radenovic, Tolias, Chum, "Fine-tuning CNN image retrieval with no human annotation", TPAMI 2018, Eq. 3.

    Args:
        p: Exponent, or the initial value of a learned one; 0.001 to 10,000, where it is the maximum to rounding.
        learned: Learn the exponent.
        eps: Lower bound of the activations; 1e-30 to 1.

    Raises:
        InputError: `p` or `eps` is not a number in its range.

    Example:
        >>> GeM(p=3.0)(torch.tensor([[[[1.0, 2.0]]]]))
        tensor([[1.6510]])
    """

    p: Tensor

    def __init__(self, p: float = 3.0, learned: bool = False, eps: float = 1e-6) -> None:
        super().__init__()
        for name, value, lowest, highest in (("p", p, MIN_P, MAX_P), ("eps", eps, MIN_EPS, 1.0)):
            if not is_number(value) or not lowest <= value <= highest:
                limits = f"from {lowest:g} to {highest:,g}"
                raise InputError(f"GeM pooling: {name} is {shown(value)}; it must be a finite number {limits}")
        self.eps = eps
        if learned:
            self.p = nn.Parameter(torch.tensor(float(p)))
        else:
            self.register_buffer("p", torch.tensor(float(p)), persistent=False)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps [n, C, H, W] -> vectors [n, C], in the data type of the maps."""
        with torch.autocast(maps.device.type, enabled=False):
            exact = maps.to(torch.promote_types(maps.dtype, torch.float32)).clamp(min=self.eps)
            p = self.p.to(exact.dtype)
            # GeM(c x) = c GeM(x), so dividing and multiplying by a constant changes neither value nor gradient.
            largest = exact.detach().amax(dim=(-2, -1))
            mean = (exact / largest[..., None, None]).pow(p).mean(dim=(-2, -1))
            return (largest * mean.pow(1 / p)).to(maps.dtype)

    def extra_repr(self) -> str:
        """The arguments, for `repr`."""
        return f"p={self.p.item():.4g}, learned={isinstance(self.p, nn.Parameter)}, eps={self.eps:g}"


class ClassToken(nn.Module):
    """The class token of a transformer: the first of its tokens.

    Example:
        >>> ClassToken()(torch.tensor([[[1.0, 2.0], [8.0, 9.0]]]))
        tensor([[1., 2.]])
    """

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens [n, L, C], prefix tokens first -> vectors [n, C]."""
        return tokens[:, 0]


def build_pooling(name: PoolingName, p: float = 3.0, learned_p: bool = False) -> nn.Module:
    """Create the pooling module of a name.

    Args:
        name: ``avg``, ``max``, ``gem``, ``avg+max`` (their sum), ``token`` (class token), ``backbone`` (the
            backbone's own pooling, after which nothing is left to pool), or ``projection`` (the same, with CLIP's
            projection).
        p: Exponent of ``gem``.
        learned_p: Learn the exponent of ``gem``.

    Raises:
        InputError: The name is unknown, or `learned_p` is set for a pooling without exponent.

    Example:
        >>> build_pooling("gem", p=4.0)
        GeM(p=4, learned=False, eps=1e-06)
    """
    if learned_p and name != "gem":
        raise InputError(f"learned_p: pooling {name!r} has no exponent to learn; use pooling 'gem'")
    match name:
        case "avg":
            return AvgPool()
        case "max":
            return MaxPool()
        case "gem":
            return GeM(p, learned_p)
        case "avg+max":
            return AvgMaxPool()
        case "token":
            return ClassToken()
        case "backbone" | "projection":
            return nn.Identity()
    raise InputError(f"pooling: {name!r} is unknown; choose avg, max, gem, avg+max, token, backbone or projection")


def to_feature_maps(features: Tensor, channels: int, channels_last: bool = False, num_prefix_tokens: int = 0) -> Tensor:
    """Convert features [n, C, H, W], [n, H, W, C] if `channels_last`, or tokens [n, L, C] to maps [n, C, H, W].

    The patch tokens of transformers become a map of width 1, without the tokens before them (class token, registers).
    """
    maps = features
    if features.ndim == 3:
        maps = features[:, num_prefix_tokens:].transpose(1, 2).unsqueeze(-1)
    elif channels_last and features.ndim == 4:
        maps = features.permute(0, 3, 1, 2)
    if maps.ndim != 4 or maps.shape[1] != channels:
        raise InputError(
            f"the backbone gives features of shape {tuple(features.shape)}; "
            f"maps [n, {channels}, H, W] or tokens [n, L, {channels}] are needed"
        )
    return maps


class L2Norm(nn.Module):
    """Divides vectors by their L2 norm."""

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
    """Create the head: normalization, linear layer (unless `dim` is None) or MLP with ReLU, dropout."""
    normalization: nn.Module = L2Norm() if norm == "l2" else nn.Identity()
    if norm.startswith("layer"):
        normalization = nn.LayerNorm(num_features, elementwise_affine=norm == "layer_affine")
    layers: nn.Module = nn.Identity()
    if dim is not None and hidden is not None:
        layers = nn.Sequential(nn.Linear(num_features, hidden), nn.ReLU(), nn.Linear(hidden, dim))
    elif dim is not None:
        layers = nn.Linear(num_features, dim)
    return nn.Sequential(normalization, layers, nn.Dropout(dropout))


@torch.no_grad()
def set_to_whitening(linear: nn.Module, path: str | Path) -> None:
    """Set a linear layer to the map of a whitening, ``(x - mean) @ components.T / sqrt(explained_variance)``."""
    with prefixed_errors("head_whitening"):
        arrays = {name: torch.from_numpy(array) for name, array in read_whitening(path).items()}
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
    """Set a linear layer to an attenuated whitening of its inputs, ``(x - mean) @ components.T / variance ** (1 / 8)``.

    Whitening divides each principal component by its standard deviation, attenuated whitening by a root of that (Tolias
    et al., "Learning and aggregating deep local descriptors for instance-level search", ECCV 2020). The fourth root was
    no worse than the features themselves on any of four data sets, the square root was on one. A tenth of the mean
    variance is added to each variance, because the small ones are estimated from few images. The rows of the weight
    have norm 1 on average; those beyond the number of inputs are zero.
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
    """Return the first dimensions of embeddings, L2-normalized; a zero vector stays zero. None: all, as they are."""
    if dim is None:
        return vectors
    check_dim(dim, vectors.shape[1])
    first = vectors[:, :dim]
    lengths = np.linalg.norm(first, axis=1, keepdims=True)
    return np.divide(first, lengths, out=np.zeros_like(first), where=lengths > 0)


def check_dim(dim: int, full_dim: int) -> None:
    """Raise InputError if embeddings of `full_dim` dimensions cannot be shortened to `dim`."""
    check_positive_integer(shortened, dim=dim)
    if dim > full_dim:
        raise InputError(f"dim = {dim} exceeds those of the embeddings, {full_dim} dimensions")
