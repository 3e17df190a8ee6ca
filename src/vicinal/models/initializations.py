"""Creating backbones with initial weights: published ones, those of a local file, or random ones."""

from __future__ import annotations

import difflib
import io
import re
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models import get_pretrained_cfg
from torch import nn

from vicinal.data.images.transforms import ImageTransform
from vicinal.models import inception  # noqa: F401 - adds its networks to those of timm
from vicinal.models.backbones import projection_dim, timm_name
from vicinal.models.downloads import announce_download, download_error, packaged_weights, published_url
from vicinal.models.execution import check_buffers, check_network_memory, limited_build
from vicinal.models.initialization_table import INITIALIZATIONS
from vicinal.models.weight_files import download_weights, load_weights, read_weights
from vicinal.utils.arguments import check_plain_values, shown
from vicinal.utils.errors import InputError, one_line

# The arguments that create_backbone sets itself, and all that make timm fetch weights or configurations.
RESERVED_ARGS = {
    *("model_name", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "pretrained_filter_fn"),
    *("pretrained_model_args", "pretrained_strict", "checkpoint_path", "cache_dir", "num_classes", "global_pool"),
    *("in_chans", "features_only", "scriptable", "exportable", "no_jit", "pruned", "kwargs_filter", "feature_cfg"),
    *("model_cfg", "model_cls", "variant", "device", "dtype"),
}

TOKEN_FOR_IMAGES = "_dinov3"  # in timm's names of DINOv3 and EUPE: their authors use the class token, timm the mean


def create_backbone(
    name: str,
    pretrained: bool | str | Path = True,
    channels: int = 3,
    image_size: int | None = None,
    backbone_args: Mapping[str, Any] | None = None,
    own_pooling: bool = False,
    projection: bool = False,
) -> nn.Module:
    """Create a network without classifier, with its initial weights.

    Args:
        name: Any timm model, ``resnet50``, or with the tag of its weights, ``resnet50.tv_in1k``; ``bn_inception`` or
            ``googlenet``; or a name in `INITIALIZATIONS`, such as ``vit_b16_clip_400m``.
        pretrained: True: published weights, downloaded once or installed by a package; False: random; else a local file
            of weights (``.safetensors``, ``.pth``, ``.pt``, ``.bin``, ``.ckpt`` or ``.torch``) in any format that is
            known for this network. The first convolution and position embeddings are adapted to `channels` and
            `image_size`; a classifier is ignored.
        channels: The number of channels of the images.
        image_size: The side in pixels, for models with a fixed input size, such as most transformers.
        backbone_args: More arguments of ``timm.create_model``, such as ``{"channels": [16, 32, 64, 128]}`` for the
            widths of a small ResNet, ``drop_path_rate`` or ``img_size``.
        own_pooling: Keep the network's own pooling (mean, class token, attention), so that the outputs are vectors.
        projection: Keep the projection of CLIP too, which is the network's last layer.

    Returns:
        The model, on the CPU, in training mode; [n, channels, H, W] -> maps or tokens, or vectors with `own_pooling` or
        `projection`.

    Raises:
        InputError: The model, an argument or the file is unknown, the weights do not fit or cannot be loaded, or the
            model has no projection.

    Example:
        >>> backbone = create_backbone("test_resnet", pretrained=False, channels=1)
        >>> backbone(torch.zeros(2, 1, 32, 32)).shape
        torch.Size([2, 96, 1, 1])
    """
    check_backbone_name(name)
    check_backbone_args(backbone_args)
    backbone_args = dict(backbone_args or {})
    dim = projection_dim(name, published=pretrained is True) if projection else 0
    if dim is None:
        raise InputError(f"pooling 'projection': {name} has no projection of CLIP; choose backbone, its own pooling")
    arguments = dict(backbone_args, num_classes=dim, in_chans=channels)
    if not (own_pooling or projection):
        arguments["global_pool"] = ""
    elif TOKEN_FOR_IMAGES in timm_name(name):
        arguments.setdefault("global_pool", "token")
    published: Path | str | None = None  # timm's own weights, or none
    if pretrained is True and name in INITIALIZATIONS:
        published = packaged_weights(name) or INITIALIZATIONS[name].url
    name = timm_name(name)
    if image_size is not None and get_pretrained_cfg(name).fixed_input_size:
        arguments.setdefault("img_size", image_size)
    if published is None and isinstance(pretrained, bool):
        return _create(name, pretrained, arguments, backbone_args)
    source = pretrained if published is None else published
    state = download_weights(published) if isinstance(published, str) else read_weights(source)  # type: ignore[arg-type]
    backbone = _create(name, False, arguments, backbone_args)
    load_weights(backbone, name, state, channels, dim, str(source))
    return backbone


def check_backbone_name(name: str) -> None:
    if not isinstance(name, str) or not re.fullmatch(r"\w+(\.\w+)?", name):
        raise InputError(f"backbone: {name!r} is not the name of a timm model, such as 'resnet50'")
    name = timm_name(name)
    if not timm.is_model(name):
        nearest = difflib.get_close_matches(name, [*INITIALIZATIONS, *timm.list_models()], n=3, cutoff=0.5)
        hint = f"nearest: {', '.join(nearest)}" if nearest else "timm.list_models() gives all names"
        raise InputError(f"backbone: timm has no model {name!r}; {hint}")
    architecture, _, tag = name.partition(".")
    tags = [full.partition(".")[2] for full in timm.list_pretrained(f"{architecture}.*")]
    if tag and tag not in tags:
        raise InputError(f"backbone: {architecture} has no weights {tag!r}; available: {', '.join(tags) or 'none'}")


def check_backbone_args(backbone_args: Mapping[str, Any] | None) -> None:
    """Check that a backbone's arguments, if any, are plain values that make timm read no files and not the network."""
    if backbone_args is None:
        return
    if not isinstance(backbone_args, Mapping):
        raise InputError(f"backbone_args is {type(backbone_args).__name__}; give a mapping such as {{depth: 3}}")
    check_plain_values("backbone_args", backbone_args)
    reserved = sorted(RESERVED_ARGS & backbone_args.keys())
    if reserved:
        raise InputError(f"backbone_args: {reserved[0]!r} cannot be set here; Vicinal sets it itself")


def default_transform(name: str) -> ImageTransform:
    """The transform for which a backbone's pretrained weights were trained: size, resize, mean, std, interpolation.

    Args:
        name: A backbone, as for :func:`create_backbone`. Use ``dataclasses.replace`` to change the result.

    Example:
        >>> default_transform("vit_base_patch16_clip_224.openai").mean
        (0.48145466, 0.4578275, 0.40821073)
    """
    check_backbone_name(name)
    if name in INITIALIZATIONS:
        return INITIALIZATIONS[name].transform
    config = timm.data.resolve_data_config(pretrained_cfg=get_pretrained_cfg(name).to_dict())
    size = config["input_size"][-1]
    return ImageTransform(
        size=size,
        resize=max(size, int(size / config["crop_pct"])),
        interpolation=config["interpolation"],
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
    )


def chosen_transform(transform: object, name: str) -> ImageTransform:
    """The transform that was given, or that of a backbone's weights; a mapping changes some of its settings."""
    if transform is None or isinstance(transform, Mapping):
        try:
            given, weights = dict(transform or {}), default_transform(name)
            settings: dict[str, Any] = {key: tuple(it) if isinstance(it, list) else it for key, it in given.items()}
            return replace(weights.at_size(settings.pop("size", weights.size)), **settings)
        except TypeError as error:
            raise InputError(f"transform: {one_line(error).rpartition(') ')[2]}") from None
    if not isinstance(transform, ImageTransform):
        raise InputError(f"transform is {type(transform).__name__}; give an ImageTransform or a dict of its settings")
    return transform


def embeds_patches(name: str) -> bool:
    """Whether a backbone begins with an embedding of patches, as vision transformers do."""
    first = get_pretrained_cfg(timm_name(name)).first_conv
    return isinstance(first, str) and first.startswith("patch_embed")


def _create(name: str, pretrained: bool, arguments: Mapping[str, Any], backbone_args: Mapping[str, Any]) -> nn.Module:
    """Create a timm model with these arguments, of which `backbone_args` are those of the user."""
    if pretrained and not get_pretrained_cfg(name).has_weights:
        raise InputError(f"backbone {name} has no published weights; use pretrained=false or a local file")
    if pretrained:
        announce_download(name)
        timm.models.set_pretrained_download_progress()  # of files not on the Hub, whose client has a bar anyway
    try:
        if backbone_args or "img_size" in arguments:
            _check_size(name, arguments)
        with redirect_stdout(io.StringIO()):  # torch.hub announces downloads too
            return timm.create_model(name, pretrained=pretrained, **arguments)
    except InputError:
        raise
    except Exception as error:  # timm checks few arguments; an invalid one raises an error where it is first used
        if not pretrained or isinstance(error, TypeError):
            given = f"with backbone_args {shown(dict(backbone_args))}"
            how = given if backbone_args else "without its pooling and classifier"
            raise InputError(f"backbone: {name} cannot be built {how}: {one_line(error)}") from error
        raise download_error(f"backbone {name}: its published weights", error, published_url(name)) from error


def _check_size(name: str, arguments: Mapping[str, Any]) -> None:
    """Check that a network is not too large, unless it is being built on the meta device anyway."""
    if torch.get_default_device().type == "meta":
        return
    what = f"backbone {name} with these arguments and this image size"
    with torch.random.fork_rng(devices=[]), torch.device("meta"), limited_build(what):
        network = timm.create_model(name, pretrained=False, **arguments)
    check_buffers(what, network)
    check_network_memory(what, network)
