"""Properties of timm backbones that architectures expose in different ways, and their frozen batch normalization."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from vicinal.utils.arguments import shown
from vicinal.utils.errors import InputError


def has_class_token(backbone: nn.Module) -> bool:
    """Whether a transformer has a class token."""
    registers = getattr(backbone, "num_reg_tokens", None) or 0
    return getattr(backbone, "cls_token", None) is not None or num_prefix_tokens(backbone) > registers


def num_prefix_tokens(backbone: nn.Module) -> int:
    """The number of tokens before the patch tokens; 0 for networks other than transformers."""
    number = getattr(backbone, "num_prefix_tokens", None)
    if number is None:  # a few models do not count their class token
        return int(getattr(backbone, "cls_token", None) is not None)
    return int(number)


def num_features(backbone: Any, projection: bool = False) -> int:
    """The number of channels of the last feature map or tokens, or of the outputs of a projection, the last layer."""
    if projection:
        return int(backbone.num_classes)
    return int(getattr(backbone, "head_hidden_size", None) or backbone.num_features)


def memory_format(backbone: nn.Module) -> torch.memory_format:
    """The order in memory in which a backbone computes fastest, by what was measured of families of networks.

    It is `torch.channels_last` for networks of convolutions, and `torch.contiguous_format` for transformers, whose only
    convolution is the patch embedding.
    """
    num_convolutions = sum(parameter.ndim == 4 for parameter in backbone.parameters())
    return torch.channels_last if num_convolutions > 1 else torch.contiguous_format


def to_channels_last(backbone: nn.Module) -> None:
    """Convert the weights of a backbone for images to the memory format `torch.channels_last`.

    `Module.to` does the same, but fails for the weights of 3D convolutions that lambda layers have.
    """
    for parameter in backbone.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)


FrozenBatchNorm = Literal["none", "statistics", "all", "auto"]
"""What does not change: nothing; the running statistics, which are then used in training; weight and bias too; or, as
"auto", the statistics of pretrained networks, and nothing of others."""


def choose_frozen(frozen: FrozenBatchNorm, is_pretrained: bool) -> FrozenBatchNorm:
    """What does not change, for networks with pretrained or random weights.

    Example:
        >>> choose_frozen("auto", is_pretrained=True)
        'statistics'
    """
    if frozen not in ("none", "statistics", "all", "auto"):
        raise InputError(f"freeze_batch_norm is {shown(frozen)}; choose none, statistics, all or auto")
    if frozen != "auto":
        return frozen
    return "statistics" if is_pretrained else "none"


def freeze_weights(backbone: nn.Module, frozen: FrozenBatchNorm) -> None:
    """Let weights and biases get no gradient, if all is frozen."""
    for norm in _batch_norms(backbone) if frozen == "all" else ():
        norm.requires_grad_(False)


def freeze_statistics(backbone: nn.Module, frozen: FrozenBatchNorm) -> None:
    """Set what is frozen to evaluation mode: what was asked for, and where the weight gets no gradient."""
    for norm in _batch_norms(backbone):
        if frozen != "none" or (norm.weight is not None and not norm.weight.requires_grad):
            norm.eval()


def _batch_norms(backbone: nn.Module) -> Iterator[_BatchNorm]:
    return (module for module in backbone.modules() if isinstance(module, _BatchNorm))
