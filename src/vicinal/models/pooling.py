"""Pooling of a feature map, or of a transformer's tokens, to one vector per image."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from vicinal.utils.arguments import is_number, shown
from vicinal.utils.errors import InputError

MIN_P, MAX_P, MIN_EPS = 1e-3, 1e4, 1e-30

PoolingName = Literal["avg", "max", "gem", "avg+max", "token", "backbone", "projection"]
"""The names of poolings; see :func:`~vicinal.models.build_pooling`."""


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
    """Convert the output of a backbone to feature maps; the patch tokens of transformers become a map of width 1.

    Args:
        features: [n, C, H, W]; [n, H, W, C] if `channels_last`; or tokens [n, L, C].
        channels: C.
        channels_last: Whether the channels are the last dimension of feature maps.
        num_prefix_tokens: The number of tokens before the patch tokens (class token, registers), which are removed.

    Returns:
        Maps [n, C, H, W]; for tokens [n, C, L - num_prefix_tokens, 1].
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
