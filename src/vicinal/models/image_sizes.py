"""Which sizes of images a backbone takes."""

from __future__ import annotations

from torch import nn

from vicinal.utils.errors import InputError


def takes_one_size(backbone: nn.Module) -> bool:
    """Whether a backbone takes images of one size only."""
    cfg = getattr(backbone, "pretrained_cfg", None)
    is_fixed = isinstance(cfg, dict) and bool(cfg.get("fixed_input_size"))
    return bool(getattr(getattr(backbone, "patch_embed", None), "strict_img_size", is_fixed))


def patch_size(backbone: nn.Module) -> tuple[int, ...]:
    """The sides of the patches that the sides of images must be multiples of; (1, 1) if images may have any size."""
    embed = getattr(backbone, "patch_embed", None)
    # Stems of other classes, such as those of EfficientViT and PVT, have a `patch_size` too, but pad images.
    if embed is None or not hasattr(embed, "strict_img_size") or getattr(embed, "dynamic_img_pad", False):
        return (1, 1)
    return tuple(embed.patch_size)


def check_patches(backbone: nn.Module, name: str, size: int) -> None:
    """Raise InputError if images of `size` pixels cannot be divided into the backbone's patches.

    A few weights were published for a size of which the patches leave a margin, such as SigLIP's 384 pixels for patches
    of 14; a backbone that takes this size only leaves the margin out.
    """
    sides, cfg = patch_size(backbone), getattr(backbone, "pretrained_cfg", None)
    is_published = isinstance(cfg, dict) and cfg["input_size"][-1] == size and takes_one_size(backbone)
    if not is_published and any(size % side for side in sides):
        raise InputError(
            f"transform.size is {size}; {name} cuts images into {sides[0]} px, so make it a multiple of that"
        )


def check_any_size(backbone: nn.Module, name: str) -> None:
    """Raise InputError if a backbone does not take whole images, whose sides may have any length."""
    if takes_one_size(backbone) or patch_size(backbone) != (1, 1):
        raise InputError(
            f"transform.longest: {name} does not take images of any size; make it with backbone_args "
            "{dynamic_img_size: true, dynamic_img_pad: true}, if this backbone knows them, or leave longest out"
        )
