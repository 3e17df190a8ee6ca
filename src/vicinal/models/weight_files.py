"""Files of weights: reading them, and loading them into networks of timm from the formats that were published."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from timm.models import EfficientNet, load_pretrained, load_state_dict, model_entrypoint
from torch import Tensor, nn

from vicinal.models.downloads import announce_url, download_error
from vicinal.utils.errors import InputError, one_line, raise_if_of_system

WEIGHT_SUFFIXES = (".safetensors", ".pth", ".pt", ".bin", ".ckpt", ".torch")

# Layers after pooling, which a backbone without classifier does not have.
CLASSIFIER_LAYERS = frozenset({"head", "heads", "head_dist", "fc", "classifier", "last_linear", "fc_norm", "attn_pool"})

# Names in the vision transformers of SWAG and torchvision -> names in timm.
TORCHVISION_VIT = (
    (r"^class_token$", "cls_token"),
    (r"^conv_proj\.", "patch_embed.proj."),
    (r"^encoder\.pos_embedding$", "pos_embed"),
    (r"^encoder\.ln\.", "norm."),
    (r"^encoder\.layers\.(?:encoder_)?layer_(\d+)\.", r"blocks.\1."),
    (r"\.ln_([12])\.", r".norm\1."),
    (r"\.self_attention\.in_proj_", ".attn.qkv."),
    (r"\.self_attention\.out_proj\.", ".attn.proj."),
    (r"\.mlp\.(?:linear_1|0)\.", ".mlp.fc1."),
    (r"\.mlp\.(?:linear_2|3)\.", ".mlp.fc2."),
)

# Names of layers in efficientnet-pytorch -> names in timm: outside blocks, in blocks that expand, in the other blocks.
EFFICIENTNET = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
EXPANDING_BLOCK = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_se_reduce": "se.conv_reduce",
    "_se_expand": "se.conv_expand",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
OTHER_BLOCK = {**EXPANDING_BLOCK, "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
EFFICIENTNET_NAME = re.compile(r"((?:\w+\.)*?)(?:_blocks\.(\d+)\.)?(_[a-z]\w+)\.(\w+)")

# Prefixes of tensor names in checkpoints that contain a network.
PREFIX = re.compile(r"(?:(?:module|_orig_mod|model|backbone)\.)+")


def read_weights(path: str | Path) -> dict[str, Any]:
    """Read a file of weights as a state dict; from a pickle only tensors and plain values are loaded.

    Outer keys (``state_dict``, ``model`` and their averaged variants) are removed.
    """
    if not isinstance(path, (str, Path)):
        raise InputError(f"pretrained is {path!r}; give a weights file, true or false")
    path = Path(os.path.expanduser(path))
    if not path.is_file():
        raise InputError(f"pretrained: no such file {path}")
    if path.suffix not in WEIGHT_SUFFIXES:
        raise InputError(f"pretrained: {path} does not end in one of {', '.join(WEIGHT_SUFFIXES)}")
    try:
        state = load_state_dict(str(path), weights_only=True)
    except Exception as error:  # the readers raise many types of errors on damaged files
        raise_if_of_system(error, path)
        raise InputError(f"pretrained: {path} cannot be read as weights: {one_line(error)}") from error
    if not state or not all(isinstance(value, (torch.Tensor, Mapping)) for value in state.values()):
        raise InputError(f"pretrained: {path} does not hold named tensors")
    return state


def download_weights(url: str) -> dict[str, Any]:
    """Download a published file of weights to the cache of torch.hub; only tensors and plain values are loaded."""
    announce_url(url)
    try:
        with redirect_stdout(io.StringIO()):  # torch.hub announces downloads too
            return dict(torch.hub.load_state_dict_from_url(url, map_location="cpu", weights_only=True, check_hash=True))
    except Exception as error:  # networks fail in many ways, and the reader raises many types of errors
        raise download_error(url, error, url) from error


def load_weights(
    backbone: nn.Module, name: str, state: dict[str, Any], channels: int, num_classes: int, source: str
) -> None:
    """Load weights as timm loads a download, but raise an error where timm only logs a warning.

    The first convolution and position embeddings are adapted to the network; a classifier is ignored, but CLIP's image
    towers have the projection as their last layer. Besides timm's own names, those of many publishers are known: by
    timm, as for CLIP, DiHT and DINOv2; here, for the vision transformers of SWAG and torchvision, and for the
    EfficientNets of efficientnet-pytorch. Of a checkpoint whose names begin with ``module.``, ``model.`` or
    ``backbone.``, such as one of Lightning, the tensors of the network are taken.
    """
    missing: list[str] = []
    unexpected: list[str] = []

    def record(_: nn.Module, keys: Any) -> None:
        missing.extend(keys.missing_keys)
        unexpected.extend(keys.unexpected_keys)

    hook = backbone.register_load_state_dict_post_hook(record)  # type: ignore[no-untyped-call]
    # The function with which timm converts other formats and resizes position embeddings, if the model has one.
    converter = getattr(sys.modules[model_entrypoint(name).__module__], "checkpoint_filter_fn", None)
    pretrained_cfg: Any = backbone.pretrained_cfg
    try:
        state = _without_prefix(_from_efficientnet_pytorch(_from_torchvision(state), backbone), backbone)
        cfg = dict(pretrained_cfg, state_dict=state, source="", custom_load=False)
        first = state.get(f"{cfg.get('first_conv')}.weight")
        if isinstance(first, Tensor) and first.ndim == 4 and first.shape[1] == channels:  # timm assumes mostly 3
            cfg["input_size"] = (channels, *cfg["input_size"][1:])
        cfg["num_classes"] = num_classes or cfg["num_classes"]  # timm leaves out a last layer of another width
        load_pretrained(backbone, cfg, num_classes=num_classes, in_chans=channels, filter_fn=converter)
    except Exception as error:  # the converter raises many types of errors for other models
        raise InputError(f"pretrained: {source} does not fit {name}: {one_line(error)}") from error
    finally:
        hook.remove()
    _check_keys(missing, unexpected, f"pretrained: {source} does not fit {name}")


def _from_torchvision(state: dict[str, Any]) -> dict[str, Any]:
    """Rename the weights of a vision transformer of SWAG or torchvision; others are returned as they are."""
    positions = state.get("encoder.pos_embedding")
    if not isinstance(positions, Tensor):
        return state
    if positions.ndim == 3 and positions.shape[1] == 1:  # SWAG's are [sequence, 1, channels]
        state = {**state, "encoder.pos_embedding": positions.transpose(0, 1)}
    return {_timm_name(name): tensor for name, tensor in state.items()}


def _timm_name(name: str) -> str:
    for pattern, replacement in TORCHVISION_VIT:
        name = re.sub(pattern, replacement, name)
    return name


def _from_efficientnet_pytorch(state: dict[str, Any], backbone: nn.Module) -> dict[str, Any]:
    """Rename the weights of efficientnet-pytorch, whose blocks are numbered through; others stay as they are."""
    if not isinstance(backbone, EfficientNet) or not any(name.endswith("_conv_stem.weight") for name in state):
        return state
    stages: Any = backbone.blocks
    places = [f"{stage}.{block}" for stage, blocks in enumerate(stages) for block in range(len(blocks))]

    def renamed(name: str) -> str:
        match = EFFICIENTNET_NAME.fullmatch(name)
        if match is None:
            return name
        prefix, block, layer, kind = match.groups()
        if block is None:
            return f"{prefix}{EFFICIENTNET.get(layer, layer)}.{kind}"
        if int(block) >= len(places):
            return name
        layers = EXPANDING_BLOCK if f"{prefix}_blocks.{block}._expand_conv.weight" in state else OTHER_BLOCK
        return f"{prefix}blocks.{places[int(block)]}.{layers.get(layer, layer)}.{kind}"

    return {renamed(name): tensor for name, tensor in state.items()}


def _without_prefix(state: dict[str, Any], backbone: nn.Module) -> dict[str, Any]:
    """The tensors of a checkpoint whose names begin with a prefix, if all of the network are there; else the state."""
    first, *others = (name for name in backbone.state_dict() if not name.endswith(".num_batches_tracked"))
    for key in state:
        prefix = key.removesuffix(first)
        if prefix != key and PREFIX.fullmatch(prefix) and all(prefix + name in state for name in others):
            return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
    return state


def _check_keys(missing: list[str], unexpected: list[str], what: str) -> None:
    # Weights of a model whose last norm is after pooling (fc_norm) have none before it, unlike a backbone without
    # pooling; timm initializes that norm, for downloaded weights too.
    if any(key.startswith("fc_norm.") for key in unexpected):
        missing = [key for key in missing if not key.startswith("norm.")]
    unexpected = [key for key in unexpected if key.split(".")[0] not in CLASSIFIER_LAYERS]
    for keys, kind in ((missing, "lacks"), (unexpected, "has the unknown")):
        if keys:
            more = f" and {len(keys) - 5} more" if len(keys) > 5 else ""
            raise InputError(f"{what}: it {kind} {', '.join(keys[:5])}{more}")
