"""Where a backbone's starting weights come from: its published ones, a local file, or chance."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import timm
import torch
from timm.models import get_pretrained_cfg, load_pretrained, load_state_dict, model_entrypoint
from torch import nn

from vicinal.data.transforms import ImageTransform
from vicinal.errors import InputError

WEIGHT_SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")

# What create_backbone itself decides, and every way timm has of fetching weights or configs from elsewhere.
RESERVED_ARGS = frozenset(
    {
        "model_name",
        "pretrained",
        "pretrained_cfg",
        "pretrained_cfg_overlay",
        "pretrained_filter_fn",
        "pretrained_model_args",
        "pretrained_strict",
        "checkpoint_path",
        "cache_dir",
        "num_classes",
        "global_pool",
        "in_chans",
        "features_only",
        "scriptable",
        "exportable",
        "no_jit",
    }
)

# Layers that come after pooling; a backbone without its classifier has none of them.
CLASSIFIER_LAYERS = frozenset({"head", "head_dist", "fc", "classifier", "last_linear", "fc_norm", "attn_pool"})


def create_backbone(
    name: str,
    pretrained: bool | str | Path = True,
    channels: int = 3,
    image_size: int | None = None,
    backbone_args: Mapping[str, Any] | None = None,
) -> nn.Module:
    """A timm model without pooling and classifier, with its starting weights.

    Args:
        name: Any timm model, ``resnet50``, or with the tag of its weights, ``vit_base_patch16_clip_224.openai``.
        pretrained: True: timm's weights, downloaded once; False: random; else a local file of weights
            (``.safetensors``, ``.pth``, ``.pt`` or ``.bin``) in any format timm reads for this model. First
            convolution and position embeddings are fitted to `channels` and `image_size`; a classifier is ignored.
        channels: Channels of the images.
        image_size: Side in pixels, for models built for one size, such as most transformers.
        backbone_args: Passed on to ``timm.create_model``, such as ``{"channels": [16, 32, 64, 128]}`` for the widths
            of a small ResNet, ``drop_path_rate`` or ``img_size``.

    Returns:
        The model, on the CPU, in training mode; [n, channels, H, W] -> maps or tokens.

    Raises:
        InputError: no such model, argument or file; weights that do not belong to the model or cannot be had.

    Example:
        >>> backbone = create_backbone("test_resnet", pretrained=False, channels=1)
        >>> backbone(torch.zeros(2, 1, 32, 32)).shape
        torch.Size([2, 96, 1, 1])
    """
    check_backbone_name(name)
    backbone_args = backbone_args or {}
    _check_args(backbone_args)
    if isinstance(pretrained, bool):
        return _create(name, pretrained, channels, image_size, backbone_args)
    state = read_weights(pretrained)
    backbone = _create(name, False, channels, image_size, backbone_args)
    _load(backbone, name, channels, state, Path(pretrained))
    return backbone


def check_backbone_name(name: str) -> None:
    """Refuse what is no registered timm model, naming the nearest.

    Raises:
        InputError: there is no such model, or no such tag of it.

    Example:
        >>> check_backbone_name("resnet50")
        >>> check_backbone_name("resnet5O")
        Traceback (most recent call last):
        vicinal.errors.InputError: backbone: timm has no model 'resnet5O'; nearest: resnet50, resnet51q, resnet50t
    """
    if not isinstance(name, str) or not re.fullmatch(r"\w+(\.\w+)?", name):
        raise InputError(f"backbone: {name!r} is not the name of a timm model, such as 'resnet50'")
    if not timm.is_model(name):
        nearest = difflib.get_close_matches(name, timm.list_models(), n=3, cutoff=0.5)
        hint = f"nearest: {', '.join(nearest)}" if nearest else "timm.list_models() gives all names"
        raise InputError(f"backbone: timm has no model {name!r}; {hint}")
    architecture, _, tag = name.partition(".")
    tags = [full.partition(".")[2] for full in timm.list_pretrained(f"{architecture}.*")]
    if tag and tag not in tags:
        raise InputError(f"backbone: {architecture} has no weights {tag!r}; there are: {', '.join(tags) or 'none'}")


def default_transform(name: str) -> ImageTransform:
    """The preprocessing a timm model's published weights were trained with: size, resize, mean, std, interpolation.

    Args:
        name: A registered timm model. Change what you need with ``dataclasses.replace``.

    Example:
        >>> default_transform("vit_base_patch16_clip_224.openai").mean
        (0.48145466, 0.4578275, 0.40821073)
    """
    check_backbone_name(name)
    config = timm.data.resolve_data_config(pretrained_cfg=get_pretrained_cfg(name).to_dict())
    size = config["input_size"][-1]
    return ImageTransform(
        size=size,
        resize=max(size, int(size / config["crop_pct"])),
        interpolation=config["interpolation"],
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
    )


def read_weights(path: str | Path) -> dict[str, Any]:
    """Read a file of weights as a state dict; of a pickle nothing but tensors and plain values is ever built.

    Wrapping (``state_dict``, ``model`` and their averaged variants) and the prefix ``module.`` are taken off.

    Raises:
        InputError: no such file, a file of another kind, truncated, or one that would run code.
    """
    if not isinstance(path, (str, Path)):
        raise InputError(f"pretrained is {path!r}; give a weights file, true or false")
    path = Path(path).expanduser()
    if not path.is_file():
        raise InputError(f"pretrained: there is no file {path}; give a weights file, true or false")
    if path.suffix not in WEIGHT_SUFFIXES:
        raise InputError(f"pretrained: {path} does not end in one of {', '.join(WEIGHT_SUFFIXES)}")
    try:
        state = load_state_dict(str(path), weights_only=True)
    except Exception as error:  # whatever the readers of foreign bytes stumble over
        raise InputError(f"pretrained: {path} cannot be read as weights: {one_line(error)}") from error
    if not state or not all(isinstance(value, (torch.Tensor, Mapping)) for value in state.values()):
        raise InputError(f"pretrained: {path} does not hold named tensors")
    return state


def one_line(error: BaseException | str, limit: int = 400) -> str:
    """The message of an error from a library, on one line and not endless."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _check_args(backbone_args: Mapping[str, Any]) -> None:
    reserved = sorted(RESERVED_ARGS & backbone_args.keys())
    if reserved:
        raise InputError(f"backbone_args: {reserved[0]!r} cannot be set here; Vicinal sets it itself")


def _create(
    name: str, pretrained: bool, channels: int, image_size: int | None, backbone_args: Mapping[str, Any]
) -> nn.Module:
    arguments = dict(backbone_args, num_classes=0, global_pool="", in_chans=channels)
    if image_size is not None and get_pretrained_cfg(name).fixed_input_size:
        arguments.setdefault("img_size", image_size)
    if pretrained and not get_pretrained_cfg(name).has_weights:
        raise InputError(f"backbone {name} has no published weights; use pretrained=false or a local file")
    try:
        return timm.create_model(name, pretrained=pretrained, **arguments)
    except Exception as error:  # timm checks few arguments itself: a wrong one fails wherever it is first used
        if not pretrained or isinstance(error, TypeError):
            how = f"with backbone_args {backbone_args}" if backbone_args else "without its pooling and classifier"
            raise InputError(f"backbone: {name} cannot be built {how}: {one_line(error)}") from error
        raise InputError(
            f"backbone {name}: its published weights could not be fetched and loaded ({one_line(error)}); "
            "give a local weights file (pretrained=path/to/model.safetensors) or pretrained=false"
        ) from error


def _load(backbone: nn.Module, name: str, channels: int, state: dict[str, Any], path: Path) -> None:
    """Load a state dict the way timm loads a download, but refuse what timm only logs."""
    missing: list[str] = []
    unexpected: list[str] = []

    def note(_: nn.Module, keys: Any) -> None:
        missing.extend(keys.missing_keys)
        unexpected.extend(keys.unexpected_keys)

    hook = backbone.register_load_state_dict_post_hook(note)  # type: ignore[no-untyped-call]
    # Where a model file knows foreign formats or resizes position embeddings, timm names the function so.
    converter = getattr(sys.modules[model_entrypoint(name).__module__], "checkpoint_filter_fn", None)
    published: Any = backbone.pretrained_cfg
    source = dict(published, state_dict=state, source="", custom_load=False)
    try:
        load_pretrained(backbone, source, num_classes=0, in_chans=channels, filter_fn=converter)
    except Exception as error:  # a state dict of another model fails wherever the converter first looks
        raise InputError(f"pretrained: {path} does not fit {name}: {one_line(error)}") from error
    finally:
        hook.remove()
    _check_keys(missing, unexpected, f"pretrained: {path} does not fit {name}")


def _check_keys(missing: list[str], unexpected: list[str], what: str) -> None:
    # Weights with the last norm after pooling (fc_norm) have none before it, where a backbone without pooling has
    # its own; timm starts that norm afresh, from a download too.
    if any(key.startswith("fc_norm.") for key in unexpected):
        missing = [key for key in missing if not key.startswith("norm.")]
    unexpected = [key for key in unexpected if key.split(".")[0] not in CLASSIFIER_LAYERS]
    for keys, kind in ((missing, "lacks"), (unexpected, "has the unknown")):
        if keys:
            more = f" and {len(keys) - 5} more" if len(keys) > 5 else ""
            raise InputError(f"{what}: it {kind} {', '.join(keys[:5])}{more}")
