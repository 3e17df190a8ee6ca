"""Properties of timm backbones that architectures expose in different ways."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


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
