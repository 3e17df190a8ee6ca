"""The layers of a backbone in their order, and training only some of its parameters."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING

from timm.models import group_parameters
from torch import nn

from vicinal.utils.arguments import shown
from vicinal.utils.errors import InputError

if TYPE_CHECKING:
    from vicinal.models.embedder import Embedder


def layer_depths(backbone: nn.Module, name: str = "the backbone") -> dict[str, int]:
    """Find how many layers above each parameter of a timm model, its classifier included, are nearer to the output.

    The layers are those of timm's `group_matcher`, by which it decays learning rates: the stem, each block, and what
    comes after the blocks (an attention pooling, a projection), which counts as the classifier. The normalization after
    the last block belongs to it.

    Args:
        backbone: A timm model, with or without classifier and adapters.
        name: Its name, for messages.

    Returns:
        Name of the parameter -> depth: 0 after the blocks, 1 in the last block, the largest in the stem.
    """
    matcher = getattr(backbone, "group_matcher", None)
    if matcher is None:
        raise InputError(f"{name} does not know the order of its layers; it has no group_matcher")
    # A parameter that no group matches, as those of a classifier, so that there is always one.
    named = SimpleNamespace(named_parameters=lambda: [*backbone.named_parameters(), ("\0classifier", None)])
    numbers: dict[str, int] = group_parameters(named, matcher(coarse=False), reverse=True)
    last = numbers.pop("\0classifier")
    return {parameter: last - number for parameter, number in numbers.items()}


def blocks_of(backbone: nn.Module) -> list[nn.Module]:
    """The blocks of a timm model, which hold one of its layers each: all but the stem and what comes after them.

    Lists of modules, which a network may go through without calling them, are none. There are no blocks in a network
    that does not know its layers.

    Example:
        >>> import timm
        >>> [type(block).__name__ for block in blocks_of(timm.create_model("test_vit"))]
        ['Block', 'Block', 'Block', 'Block', 'Block', 'Block']
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


def train_last_blocks(embedder: Embedder, blocks: int) -> None:
    """Freeze the backbone of an embedder except its last blocks, and what comes after them.

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
