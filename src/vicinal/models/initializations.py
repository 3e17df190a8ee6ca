"""Creating backbones with initial weights: timm's pretrained ones, those of a local file, or random ones."""

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
from vicinal.models.limited_build import check_buffers, check_network_memory, limited_build
from vicinal.utils.arguments import check_plain_values, shown
from vicinal.utils.errors import InputError, one_line

WEIGHT_SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")

# The arguments that create_backbone sets itself, and all that make timm fetch weights or configurations.
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
        "pruned",
        "kwargs_filter",
        "feature_cfg",
        "model_cfg",
        "model_cls",
        "variant",
        "device",
        "dtype",
    }
)

# Layers after pooling, which a backbone without classifier does not have.
CLASSIFIER_LAYERS = frozenset({"head", "head_dist", "fc", "classifier", "last_linear", "fc_norm", "attn_pool"})


def create_backbone(
    name: str,
    pretrained: bool | str | Path = True,
    channels: int = 3,
    image_size: int | None = None,
    backbone_args: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Create a timm model without pooling and classifier, with its initial weights.

    Args:
        name: Any timm model, ``resnet50``, or with the tag of its weights, ``vit_base_patch16_clip_224.openai``.
        pretrained: True: timm's weights, downloaded once; False: random; else a local file of weights
            (``.safetensors``, ``.pth``, ``.pt`` or ``.bin``) in any format that timm reads for this model. The first
            convolution and position embeddings are adapted to `channels` and `image_size`; a classifier is ignored.
        channels: The number of channels of the images.
        image_size: The side in pixels, for models with a fixed input size, such as most transformers.
        backbone_args: More arguments of ``timm.create_model``, such as ``{"channels": [16, 32, 64, 128]}`` for the
            widths of a small ResNet, ``drop_path_rate`` or ``img_size``.

    Returns:
        The model, on the CPU, in training mode; [n, channels, H, W] -> maps or tokens.

    Raises:
        InputError: The model, an argument or the file is unknown, or the weights do not fit or cannot be loaded.

    Example:
        >>> backbone = create_backbone("test_resnet", pretrained=False, channels=1)
        >>> backbone(torch.zeros(2, 1, 32, 32)).shape
        torch.Size([2, 96, 1, 1])
    """
    check_backbone_name(name)
    backbone_args = backbone_args or {}
    check_backbone_args(backbone_args)
    if isinstance(pretrained, bool):
        return _create(name, pretrained, channels, image_size, backbone_args)
    state = read_weights(pretrained)
    backbone = _create(name, False, channels, image_size, backbone_args)
    _load(backbone, name, channels, state, Path(pretrained))
    return backbone


def check_backbone_name(name: str) -> None:
    """Check that a name is that of a timm model.

    Raises:
        InputError: The model or its tag is unknown; the message names similar ones.

    Example:
        >>> check_backbone_name("resnet50")
        >>> check_backbone_name("resnet5O")
        Traceback (most recent call last):
        vicinal.utils.errors.InputError: backbone: timm has no model 'resnet5O'; nearest: resnet50, resnet51q, resnet50t
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


def check_backbone_args(backbone_args: Mapping[str, Any]) -> None:
    """Check that more arguments of a backbone are plain values, none of which makes timm read files or the network.

    Raises:
        InputError: a value is not plain, as :func:`vicinal.utils.arguments.check_plain_values` says, or is reserved.

    Example:
        >>> check_backbone_args({"checkpoint_path": "weights.pth"})
        Traceback (most recent call last):
        vicinal.utils.errors.InputError: backbone_args: 'checkpoint_path' cannot be set here; Vicinal sets it itself
    """
    if not isinstance(backbone_args, Mapping):
        raise InputError(f"backbone_args is {type(backbone_args).__name__}; give a mapping such as {{depth: 3}}")
    check_plain_values("backbone_args", backbone_args)
    reserved = sorted(RESERVED_ARGS & backbone_args.keys())
    if reserved:
        raise InputError(f"backbone_args: {reserved[0]!r} cannot be set here; Vicinal sets it itself")


def default_transform(name: str) -> ImageTransform:
    """The transform for which a timm model's pretrained weights were trained: size, resize, mean, std, interpolation.

    Args:
        name: A timm model. Use ``dataclasses.replace`` to change the result.

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
    """Read a file of weights as a state dict; from a pickle only tensors and plain values are loaded.

    Outer keys (``state_dict``, ``model`` and their averaged variants) and the prefix ``module.`` are removed.

    Raises:
        InputError: The file does not exist, is of another type, is truncated, or would run code.
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
    except Exception as error:  # the readers raise many types of errors on damaged files
        raise InputError(f"pretrained: {path} cannot be read as weights: {one_line(error)}") from error
    if not state or not all(isinstance(value, (torch.Tensor, Mapping)) for value in state.values()):
        raise InputError(f"pretrained: {path} does not hold named tensors")
    return state


def _create(
    name: str, pretrained: bool, channels: int, image_size: int | None, backbone_args: Mapping[str, Any]
) -> nn.Module:
    arguments = dict(backbone_args, num_classes=0, global_pool="", in_chans=channels)
    if image_size is not None and get_pretrained_cfg(name).fixed_input_size:
        arguments.setdefault("img_size", image_size)
    if pretrained and not get_pretrained_cfg(name).has_weights:
        raise InputError(f"backbone {name} has no published weights; use pretrained=false or a local file")
    try:
        if backbone_args or "img_size" in arguments:
            _check_size(name, arguments)
        return timm.create_model(name, pretrained=pretrained, **arguments)
    except InputError:
        raise
    except Exception as error:  # timm checks few arguments; an invalid one raises an error where it is first used
        if not pretrained or isinstance(error, TypeError):
            given = f"with backbone_args {shown(dict(backbone_args))}"
            how = given if backbone_args else "without its pooling and classifier"
            raise InputError(f"backbone: {name} cannot be built {how}: {one_line(error)}") from error
        raise InputError(
            f"backbone {name}: its published weights could not be fetched and loaded ({one_line(error)}); "
            "give a local weights file (pretrained=path/to/model.safetensors) or pretrained=false"
        ) from error


def _check_size(name: str, arguments: Mapping[str, Any]) -> None:
    """Check that a network is not too large, unless it is being built on the meta device anyway."""
    if torch.get_default_device().type == "meta":
        return
    what = f"backbone {name} with these arguments and this image size"
    with torch.random.fork_rng(devices=[]), torch.device("meta"), limited_build(what):
        network = timm.create_model(name, pretrained=False, **arguments)
    check_buffers(what, network)
    check_network_memory(what, network)


def _load(backbone: nn.Module, name: str, channels: int, state: dict[str, Any], path: Path) -> None:
    """Load a state dict as timm loads a download, but raise an error where timm only logs a warning."""
    missing: list[str] = []
    unexpected: list[str] = []

    def record(_: nn.Module, keys: Any) -> None:
        missing.extend(keys.missing_keys)
        unexpected.extend(keys.unexpected_keys)

    hook = backbone.register_load_state_dict_post_hook(record)  # type: ignore[no-untyped-call]
    # The function with which timm converts other formats and resizes position embeddings, if the model has one.
    converter = getattr(sys.modules[model_entrypoint(name).__module__], "checkpoint_filter_fn", None)
    pretrained_cfg: Any = backbone.pretrained_cfg
    source = dict(pretrained_cfg, state_dict=state, source="", custom_load=False)
    try:
        load_pretrained(backbone, source, num_classes=0, in_chans=channels, filter_fn=converter)
    except Exception as error:  # the converter raises many types of errors for other models
        raise InputError(f"pretrained: {path} does not fit {name}: {one_line(error)}") from error
    finally:
        hook.remove()
    _check_keys(missing, unexpected, f"pretrained: {path} does not fit {name}")


def _check_keys(missing: list[str], unexpected: list[str], what: str) -> None:
    # Weights of a model whose last norm is after pooling (fc_norm) have none before it, unlike a backbone without
    # pooling; timm initializes that norm anew, for downloaded weights too.
    if any(key.startswith("fc_norm.") for key in unexpected):
        missing = [key for key in missing if not key.startswith("norm.")]
    unexpected = [key for key in unexpected if key.split(".")[0] not in CLASSIFIER_LAYERS]
    for keys, kind in ((missing, "lacks"), (unexpected, "has the unknown")):
        if keys:
            more = f" and {len(keys) - 5} more" if len(keys) > 5 else ""
            raise InputError(f"{what}: it {kind} {', '.join(keys[:5])}{more}")
