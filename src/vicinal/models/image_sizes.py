"""Which sizes of images a backbone takes."""

from __future__ import annotations

from torch import nn

from vicinal.utils.errors import InputError


def takes_one_size(backbone: nn.Module) -> bool:
    """Whether a backbone takes images of one size only."""
    return bool(getattr(getattr(backbone, "patch_embed", None), "strict_img_size", False))


def patch_size(backbone: nn.Module) -> tuple[int, ...]:
    """The sides of the patches that the sides of images must be multiples of; (1, 1) if images may have any size."""
    embed = getattr(backbone, "patch_embed", None)
    sides = getattr(embed, "patch_size", None)
    return (1, 1) if sides is None or getattr(embed, "dynamic_img_pad", False) else tuple(sides)


def check_any_size(backbone: nn.Module, name: str) -> None:
    """Raise InputError if a backbone does not take whole images, whose sides may have any length."""
    if takes_one_size(backbone) or patch_size(backbone) != (1, 1):
        raise InputError(
            f"transform.longest: {name} does not take images of any size; make it with backbone_args "
            "{dynamic_img_size: true, dynamic_img_pad: true}, if this backbone knows them, or leave longest out"
        )
