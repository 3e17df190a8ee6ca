"""Training a part of a backbone: low-rank adapters (LoRA) of its layers, its last blocks, or its biases and norms.

Adapters are merged into the layers when the model is saved.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from vicinal.models.backbones import layer_depths
from vicinal.models.execution import eval_mode
from vicinal.models.saving import ADAPTER, adapted_layers
from vicinal.utils.arguments import is_number, shown
from vicinal.utils.errors import InputError, import_extra

if TYPE_CHECKING:
    from vicinal.models.embedder import Embedder

ATTENTION = r"(.*[._])?attn\.(qkv|[qkv]|kv|[qkv]_proj|proj|out_proj)"
MLP = r"(.*\.)?mlp\.fc[12]"


def add_lora(
    embedder: Embedder, rank: int = 8, alpha: float = 16.0, dropout: float = 0.0, targets: Sequence[str] | None = None
) -> list[str]:
    """Freeze the backbone of an embedder, and add low-rank adapters to some of its layers (package peft, extra `lora`).

    A layer with weight W computes ``(W + alpha / rank * B A) x`` instead of ``W x``. Only A and B are trained, beside
    pooling, head and projector: A is random and B zero at first, so that the outputs do not change until training does.
    `save_pretrained` and `fingerprint` merge the adapters into W: the folder is an ordinary one, which needs no peft.

    Reference: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022, Eq. 3.

    Args:
        embedder: The model, which is changed.
        rank: The rank of the adapters, 1 or more.
        alpha: The scale of the adapters times their rank.
        dropout: Dropout probability of the inputs of the adapters, 0 to below 1.
        targets: Names of the layers, or the ends of names: ``attn.qkv`` is that layer of all blocks. None: queries,
            keys, values and output of all attention layers of a transformer, together with the MLPs where it uses a
            weight of its attention in another way than by calling the layer (BEiT, EVA, Swin V2); the MLPs of ConvNeXt;
            all convolutions but the first and grouped ones of other networks, such as ResNet and EfficientNet.

    Returns:
        The names of the layers with adapters.

    Raises:
        InputError: peft is not installed, a target names no layer, or a layer can have no adapter.

    Example:
        >>> from vicinal import Embedder
        >>> embedder = Embedder("test_vit", dim=8, pooling="token", pretrained=False)
        >>> add_lora(embedder, rank=4)[:2]
        ['blocks.0.attn.qkv', 'blocks.0.attn.proj']
    """
    _check_arguments(rank, alpha, dropout)
    peft = import_extra("peft", "lora", "LoRA")
    if any(True for _ in adapted_layers(embedder)):
        raise InputError("add_lora: the model already has adapters")
    names = default_targets(embedder) if targets is None else find_targets(embedder, targets)
    pattern = "|".join(map(re.escape, names))
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules=pattern)
    peft.inject_adapter_in_model(config, embedder.backbone, ADAPTER)
    embedder.train(embedder.training)  # batch normalization that is frozen now stays as it is
    return names


def default_targets(embedder: Embedder) -> list[str]:
    """The names of the layers that get adapters unless others are asked for; see :func:`add_lora`."""
    layers, called = _layers(embedder), _called_layers(embedder)
    usable = [name for name, layer in layers.items() if not _adapter_obstacle(layer) and name in called]
    attention = [name for name in usable if re.fullmatch(ATTENTION, name)]
    if attention and not any(re.fullmatch(ATTENTION, name) for name in layers if name not in called):
        return attention
    first = next(iter(layers), None)
    names = [name for name in usable if name in attention or re.fullmatch(MLP, name)]
    names = names or [name for name in usable if name != first]
    if not names:
        raise InputError(f"LoRA: {embedder.config['backbone']} has no layer that supports an adapter")
    return names


def find_targets(embedder: Embedder, targets: Sequence[str]) -> list[str]:
    """The names of the layers that have one of these names, or end with it."""
    if not targets or isinstance(targets, str):
        raise InputError(f"LoRA: targets is {shown(targets)}; it must be a list of names of layers, such as [attn.qkv]")
    layers, called, backbone = _layers(embedder), _called_layers(embedder), embedder.config["backbone"]
    found: dict[str, None] = {}
    for target in targets:
        names = [name for name in layers if f".{name}".endswith(f".{target}")]
        if not names:
            raise InputError(
                f"LoRA: targets: {backbone} has no layer {shown(target)}; {_similar_names(target, layers)}"
            )
        for name in names:
            problem = _adapter_obstacle(layers[name]) or ("" if name in called else "used without being called")
            if problem:
                raise InputError(f"LoRA: targets: {name} of {backbone} cannot have an adapter: it is {problem}")
        found |= dict.fromkeys(names)
    return list(found)


def _layers(embedder: Embedder) -> dict[str, nn.Module]:
    modules = embedder.backbone.named_modules()
    return {name: module for name, module in modules if isinstance(module, (nn.Linear, nn.Conv2d))}


def _called_layers(embedder: Embedder) -> set[str]:
    """The names of the layers that are called when an image is embedded.

    Some networks take the weight of a layer and do not call it: an adapter would have no effect.
    """
    called: set[str] = set()
    layers, size = _layers(embedder), embedder.transform.size
    hooks = [layer.register_forward_hook(lambda *_, name=name: called.add(name)) for name, layer in layers.items()]
    weight = next(embedder.parameters())
    try:
        with eval_mode(embedder), torch.no_grad():
            embedder.backbone(weight.new_zeros(1, embedder.transform.channels, size, size))
    finally:
        for hook in hooks:
            hook.remove()
    return called


def _adapter_obstacle(layer: nn.Module) -> str:
    """Why a layer can have no adapter: a subclass may transform its weight further, which merging would skip."""
    if type(layer) is nn.Conv2d:
        plain = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
        return "" if plain else "a convolution with groups, dilation or other padding than zeros"
    return "" if type(layer) is nn.Linear else f"a {type(layer).__name__}, not Linear or Conv2d itself"


def _similar_names(target: object, layers: Iterable[str]) -> str:
    """The names most like that of a target, for messages: those of whole blocks' layers, such as attn.qkv, first."""
    ends = dict.fromkeys(name.split(".", i)[-1] for i in (99, 0) for name in layers)
    pairs = dict.fromkeys(".".join(name.split(".")[-2:]) for name in layers)
    near = difflib.get_close_matches(str(target), [*pairs, *ends], n=3, cutoff=0.5)
    return f"nearest: {', '.join(near)}" if near else f"its layers are {', '.join(list(pairs)[:6])}, ..."


def _check_arguments(rank: object, alpha: object, dropout: object) -> None:
    if type(rank) is not int or rank < 1:  # True is an int too
        raise InputError(f"LoRA: rank is {shown(rank)}; it must be an integer, 1 or more")
    if not is_number(alpha) or not alpha > 0:
        raise InputError(f"LoRA: alpha is {shown(alpha)}; it must be a number above 0")
    if not is_number(dropout) or not 0 <= dropout < 1:
        raise InputError(f"LoRA: dropout is {shown(dropout)}; it must be a number from 0 to below 1")


def train_last_blocks(embedder: Embedder, blocks: int) -> None:
    """Freeze the backbone of an embedder except its last blocks and the layers after them.

    Batch normalization in frozen layers keeps its statistics.

    Args:
        embedder: The model, which is changed.
        blocks: The number of blocks that are trained: residual blocks, or those of a transformer.

    Raises:
        InputError: the backbone has fewer blocks, or does not know its layers.

    Example:
        >>> from vicinal import Embedder
        >>> embedder = Embedder("test_vit", dim=8, pooling="token", pretrained=False)
        >>> train_last_blocks(embedder, 1)
        >>> len([name for name, p in embedder.backbone.named_parameters() if p.requires_grad])
        14
    """
    name = embedder.config["backbone"]
    depths = layer_depths(embedder.backbone, name)
    number = max(depths.values()) - 1  # without the stem
    if type(blocks) is not int or not 1 <= blocks <= number:
        raise InputError(f"blocks is {shown(blocks)}; it must be an integer from 1 to {number}, the blocks of {name}")
    _train_only(embedder, lambda parameter, _: depths[parameter] <= blocks)


def train_biases_and_norms(embedder: Embedder) -> None:
    """Freeze the backbone of an embedder except its vectors: biases, weights of normalization and of layer scales.

    Reference: Ben Zaken et al., "BitFit", ACL 2022; Frankle et al., "Training BatchNorm and Only BatchNorm", ICLR 2021.

    Args:
        embedder: The model, which is changed.

    Example:
        >>> from vicinal import Embedder
        >>> embedder = Embedder("test_vit", dim=8, pooling="token", pretrained=False)
        >>> train_biases_and_norms(embedder)
        >>> {p.ndim for p in embedder.backbone.parameters() if p.requires_grad}
        {1}
    """
    _train_only(embedder, lambda _, parameter: parameter.ndim <= 1)


def _train_only(embedder: Embedder, condition: Callable[[str, nn.Parameter], bool]) -> None:
    parameters = dict(embedder.backbone.named_parameters())
    for name, parameter in parameters.items():
        parameter.requires_grad_(parameter.requires_grad and condition(name, parameter))
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise InputError(f"nothing of {embedder.config['backbone']} is left to train; is batch normalization frozen?")
    embedder.train(embedder.training)  # batch normalization that is frozen now stays as it is
