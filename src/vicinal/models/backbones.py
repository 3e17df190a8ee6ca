"""Properties of timm backbones that architectures expose in different ways."""

from __future__ import annotations

from typing import Any

from torch import nn

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


def check_patches(backbone: nn.Module, name: str, size: int) -> None:
    """Raise InputError if images of `size` pixels cannot be divided into the backbone's patches."""
    embed = getattr(backbone, "patch_embed", None)
    patch_size = getattr(embed, "patch_size", None)
    if patch_size and not getattr(embed, "dynamic_img_pad", False) and any(size % side for side in patch_size):
        raise InputError(
            f"transform.size is {size}; {name} cuts images into {patch_size[0]} px, so make it a multiple of that"
        )
