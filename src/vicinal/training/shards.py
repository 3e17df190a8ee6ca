"""Class centers divided among processes, in training: what every process does alone, and what they put together.

`DistributedDataParallel` takes all parameters to be the same everywhere. Those that are not are kept from it; the norm
of the gradient and the optimiser's state are then of all processes' parts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vicinal import distributed
from vicinal.errors import InputError
from vicinal.losses import CenterBasedLoss

State = dict[str, Any]


def divided_losses(module: nn.Module) -> dict[str, CenterBasedLoss]:
    """The losses in a module whose centers are divided among processes, by their names."""
    return {
        name: part for name, part in module.named_modules() if isinstance(part, CenterBasedLoss) and part.is_divided
    }


def keep_from_ddp(module: nn.Module, precision: str) -> None:
    """Have divided centers left alone when the module is wrapped.

    Raises:
        InputError: with float16, whose scaling of the loss would differ between processes.
    """
    divided = divided_losses(module)
    if divided and precision == "16-mixed":
        raise InputError("precision = 16-mixed does not go with sharded centers; take bf16-mixed or 32")
    if divided:
        names = [f"{name}.centers" for name in divided]
        ignore = "_set_params_and_buffers_to_ignore_for_model"  # what torch has for this, and has no public name for
        getattr(DistributedDataParallel, ignore)(module, names)


def norm_of_all(norm: Tensor, module: nn.Module) -> Tensor:
    """The norm of the whole gradient, from that of this process's, [] both."""
    parts = [part.centers.grad for part in divided_losses(module).values() if part.centers is not None]
    squares = sum((part.square().sum() for part in parts if part is not None), start=torch.zeros_like(norm))
    return (norm.square() - squares + distributed.total(squares)).clamp_min(0).sqrt()


def whole_state(state: State, optimizer: torch.optim.Optimizer, module: nn.Module) -> State:
    """An optimiser's state with that of divided centers put together; every process must ask."""
    return _changed(state, optimizer, module, CenterBasedLoss.whole)


def own_state(state: State, optimizer: torch.optim.Optimizer, module: nn.Module) -> State:
    """The part of such a state that is this process's."""
    return _changed(state, optimizer, module, CenterBasedLoss.own_part)


def _changed(state: State, optimizer: torch.optim.Optimizer, module: nn.Module, change: Any) -> State:
    """With `change(loss, tensor)` in the place of every tensor that is of divided centers."""
    ordered = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    owners = {id(part.centers): part for part in divided_losses(module).values()}
    changed = dict(state["state"])
    for i, parameter in enumerate(ordered):
        if id(parameter) in owners and i in changed:
            of_part = changed[i].items()
            changed[i] = {k: change(owners[id(parameter)], v) if _is_large(v) else v for k, v in of_part}
    return {**state, "state": changed}


def _is_large(value: object) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0
