"""What an embedder has to know of a timm backbone, which the many architectures say in different ways."""

from __future__ import annotations

from typing import Any

from torch import nn

from vicinal.errors import InputError


def has_class_token(backbone: nn.Module) -> bool:
    """Whether a transformer has a token for the whole image."""
    registers = getattr(backbone, "num_reg_tokens", None) or 0
    return getattr(backbone, "cls_token", None) is not None or prefix_tokens(backbone) > registers


def prefix_tokens(backbone: nn.Module) -> int:
    """How many tokens stand before those of the patches; 0 for other networks."""
    number = getattr(backbone, "num_prefix_tokens", None)
    if number is None:  # a few models have a class token and do not count it
        return int(getattr(backbone, "cls_token", None) is not None)
    return int(number)


def num_features(backbone: Any) -> int:
    """Channels of the last map or tokens."""
    return int(getattr(backbone, "head_hidden_size", None) or backbone.num_features)


def check_patches(backbone: nn.Module, name: str, size: int) -> None:
    """Raise InputError when images of `size` pixels cannot be cut into the backbone's patches."""
    embed = getattr(backbone, "patch_embed", None)
    patch = getattr(embed, "patch_size", None)
    if patch and not getattr(embed, "dynamic_img_pad", False) and any(size % side for side in patch):
        raise InputError(
            f"transform.size is {size}; {name} cuts images into {patch[0]} px, so make it a multiple of that"
        )
