"""Properties of backbones: by their names, of their networks, and the order of their layers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from vicinal.models.head import PoolingName
from vicinal.models.initialization_table import INITIALIZATIONS
from vicinal.utils.arguments import shown
from vicinal.utils.errors import InputError

# The image towers of CLIP in timm: their last layer is the projection into the space of images and texts, except where
# it was replaced by the classifier of a fine-tuning.
CLIP_TOWER = re.compile(r"clip|_pe_core_")
FINE_TUNED = re.compile(r"_in\d+k")
FrozenBatchNorm = Literal["none", "statistics", "all", "auto"]
"""The frozen parts: none; the running statistics, which are then used in training; weight and bias too; or, as
"auto", the statistics of pretrained networks, and nothing of others."""


def timm_name(name: str) -> str:
    """The name in timm of a backbone, which differs for those of `INITIALIZATIONS`."""
    return INITIALIZATIONS[name].backbone if isinstance(name, str) and name in INITIALIZATIONS else name


def weights_license(backbone: str) -> str | None:
    """The license of a backbone's published weights, as timm or their package gives it; None if neither has them."""
    if backbone in INITIALIZATIONS and INITIALIZATIONS[backbone].url is not None:
        return None
    if backbone in INITIALIZATIONS and INITIALIZATIONS[backbone].package is not None:
        return "apache-2.0"
    cfg = _pretrained_cfg(timm_name(backbone))
    license_name: str | None = None if cfg is None else cfg.license
    return license_name


def projection_dim(name: str, published: bool = False) -> int | None:
    """The dimension into which CLIP's projection maps the pooled features of a backbone; None if it has none.

    Weights that are `published` under that name may have been fine-tuned and then have a classifier in place of the
    projection; others are those of a file.
    """
    architecture, _, tag = timm_name(name).partition(".")
    if published and not tag and not (name in INITIALIZATIONS and INITIALIZATIONS[name].url):
        names = [architecture]  # of the tag that timm takes without one
    else:
        names = [timm_name(name)] if tag else _timm().list_pretrained(f"{architecture}.*")
    return next((dim for each in names if (dim := _projection_dim(each))), None)


def _projection_dim(name: str) -> int | None:
    cfg = _pretrained_cfg(name)
    if cfg is None or not CLIP_TOWER.search(f"{cfg.architecture}.{cfg.tag}") or FINE_TUNED.search(cfg.tag or ""):
        return None
    return cfg.num_classes or None


def default_pooling(name: str) -> PoolingName:
    """The pooling of the image embedding that a backbone's weights were published with.

    It is `projection` for the image towers of CLIP, the pooling in `INITIALIZATIONS` for other names in it, and
    `backbone`, the network's own, for all others: class token for DINOv2, DINOv3 and EUPE, attention pooling for
    SigLIP, the mean for convolutional networks.

    Args:
        name: A backbone, as for :func:`~vicinal.models.create_backbone`.

    Example:
        >>> default_pooling("vit_b16_clip_400m"), default_pooling("vit_s14_dinov2"), default_pooling("resnet50")
        ('projection', 'token', 'backbone')
    """
    if projection_dim(name, published=True) is not None:
        return "projection"
    return INITIALIZATIONS[name].pooling if name in INITIALIZATIONS else "backbone"


def _pretrained_cfg(name: str) -> Any:
    return _timm().models.get_pretrained_cfg(name)


def _timm() -> Any:
    import timm  # slow to import, and saved refiners do without it

    return timm


def has_class_token(backbone: nn.Module) -> bool:
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


def takes_one_size(backbone: nn.Module) -> bool:
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

    A few weights were published for a size that is not a multiple of the patch size, such as SigLIP's 384 pixels for
    patches of 14; a backbone that takes only this size ignores the margin.
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
            "{dynamic_img_size: true, dynamic_img_pad: true}, if this backbone supports it, or leave longest out"
        )


def memory_format(backbone: nn.Module) -> torch.memory_format:
    """The order in memory in which a backbone computes fastest, as measured for families of networks.

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


def choose_frozen(frozen: FrozenBatchNorm, is_pretrained: bool) -> FrozenBatchNorm:
    """The frozen parts of networks with pretrained or random weights."""
    if frozen not in ("none", "statistics", "all", "auto"):
        raise InputError(f"freeze_batch_norm is {shown(frozen)}; choose none, statistics, all or auto")
    if frozen != "auto":
        return frozen
    return "statistics" if is_pretrained else "none"


def freeze_weights(backbone: nn.Module, frozen: FrozenBatchNorm) -> None:
    """Disable the gradients of weights and biases if `frozen` is "all"."""
    for norm in _batch_norms(backbone) if frozen == "all" else ():
        norm.requires_grad_(False)


def freeze_statistics(backbone: nn.Module, frozen: FrozenBatchNorm) -> None:
    """Set frozen batch normalization to evaluation mode: as asked for, and where the weight gets no gradient."""
    for norm in _batch_norms(backbone):
        if frozen != "none" or (norm.weight is not None and not norm.weight.requires_grad):
            norm.eval()


def _batch_norms(backbone: nn.Module) -> Iterator[_BatchNorm]:
    return (module for module in backbone.modules() if isinstance(module, _BatchNorm))


def layer_depths(backbone: nn.Module, name: str = "the backbone") -> dict[str, int]:
    """Count the layers that are nearer to the output than each parameter of a timm model, including its classifier.

    The layers are those of timm's `group_matcher`, by which it decays learning rates: the stem, each block, and what
    comes after the blocks (an attention pooling, a projection), which counts as the classifier. The normalization after
    the last block belongs to it. The depth is 0 after the blocks, 1 in the last block, and largest in the stem.
    """
    matcher = getattr(backbone, "group_matcher", None)
    if matcher is None:
        raise InputError(f"{name} has no group_matcher, so the order of its layers is unknown")
    # A parameter that no group matches, like those of a classifier, so that a classifier always exists.
    named = SimpleNamespace(named_parameters=lambda: [*backbone.named_parameters(), ("\0classifier", None)])
    numbers: dict[str, int] = _timm().models.group_parameters(named, matcher(coarse=False), reverse=True)
    last = numbers.pop("\0classifier")
    return {parameter: last - number for parameter, number in numbers.items()}


def blocks_of(backbone: nn.Module) -> list[nn.Module]:
    """The blocks of a timm model, which hold one of its layers each: all but the stem and the layers after them.

    Lists of modules, which a network may go through without calling them, do not count. A network that does not know
    its layers has no blocks.
    """
    try:
        depths = layer_depths(backbone)
    except InputError:
        return []
    stem = max(depths.values())

    def inside(name: str, module: nn.Module) -> list[nn.Module]:
        found = {depth for each, depth in depths.items() if each.startswith(name)}
        children = list(module.named_children())
        if len(found) == 1 and children and not isinstance(module, (nn.Sequential, nn.ModuleList, nn.ModuleDict)):
            return [module] if found.isdisjoint({0, stem}) else []
        return [block for each, child in children for block in inside(f"{name}{each}.", child)]

    return inside("", backbone)
