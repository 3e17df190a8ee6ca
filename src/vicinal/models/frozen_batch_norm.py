"""Batch normalization of a backbone that does not change in training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from vicinal.utils.arguments import shown
from vicinal.utils.errors import InputError

FrozenBatchNorm = Literal["none", "statistics", "all", "auto"]
"""What does not change: nothing; the running statistics, which are then used in training; weight and bias too; or, as
"auto", the statistics of pretrained networks, and nothing of others."""


def choose_frozen(frozen: FrozenBatchNorm, is_pretrained: bool) -> FrozenBatchNorm:
    """What does not change, for networks with pretrained or random weights.

    Raises:
        InputError: The name is unknown.

    Example:
        >>> choose_frozen("auto", is_pretrained=True)
        'statistics'
    """
    if frozen not in ("none", "statistics", "all", "auto"):
        raise InputError(f"freeze_batch_norm is {shown(frozen)}; choose none, statistics, all or auto")
    if frozen != "auto":
        return frozen
    return "statistics" if is_pretrained else "none"


def freeze_weights(backbone: nn.Module, frozen: FrozenBatchNorm) -> None:
    """Let weights and biases get no gradient, if all is frozen."""
    for norm in _batch_norms(backbone) if frozen == "all" else ():
        norm.requires_grad_(False)


def freeze_statistics(backbone: nn.Module, frozen: FrozenBatchNorm) -> None:
    """Set what is frozen to evaluation mode: what was asked for, and where the weight gets no gradient."""
    for norm in _batch_norms(backbone):
        if frozen != "none" or (norm.weight is not None and not norm.weight.requires_grad):
            norm.eval()


def _batch_norms(backbone: nn.Module) -> Iterator[_BatchNorm]:
    return (module for module in backbone.modules() if isinstance(module, _BatchNorm))
