"""Training with class centers that are sharded over the processes.

`DistributedDataParallel` takes all parameters to be the same in every process. Sharded centers are excluded from it;
the norm of the gradient and the state of the optimizer are then those of all shards together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vicinal.losses import CenterBasedLoss
from vicinal.utils import distributed
from vicinal.utils.errors import InputError

State = dict[str, Any]


def sharded_losses(module: nn.Module) -> dict[str, CenterBasedLoss]:
    """The losses in a module whose centers are sharded, by their names in the module."""
    return {
        name: part for name, part in module.named_modules() if isinstance(part, CenterBasedLoss) and part.is_sharded
    }


def exclude_from_ddp(module: nn.Module, precision: str) -> None:
    """Exclude sharded centers from `DistributedDataParallel`, before it wraps the module.

    Raises:
        InputError: float16, whose loss scale would differ between processes.
    """
    sharded = sharded_losses(module)
    if sharded and precision == "16-mixed":
        raise InputError("precision = 16-mixed does not support sharded centers; use bf16-mixed or 32")
    if sharded:
        names = [f"{name}.centers" for name in sharded]
        ignore = "_set_params_and_buffers_to_ignore_for_model"  # torch has no public name for this
        getattr(DistributedDataParallel, ignore)(module, names)


def shard_squares(module: nn.Module) -> Tensor | None:
    """The sum of squares of the gradient of this process's shards, []; None without sharded centers."""
    centers = [loss.centers for loss in sharded_losses(module).values() if loss.centers is not None]
    squares = [each.new_zeros(()) if each.grad is None else each.grad.square().sum() for each in centers]
    return torch.stack(squares).sum() if squares else None


def global_grad_norm(norm: Tensor, module: nn.Module, total_squares: float | None = None) -> Tensor:
    """The norm of the gradient with all shards, from that with this process's shard, both [].

    Args:
        norm: the norm with this process's shards.
        module: the module.
        total_squares: the sum of :func:`shard_squares` over processes; None: it is found by a message.
    """
    own = shard_squares(module)
    if own is None:
        return norm
    total = distributed.all_reduce_sum(own) if total_squares is None else total_squares
    return (norm.square() - own + total).clamp_min(0).sqrt()


def gather_optimizer_state(state: State, optimizer: torch.optim.Optimizer, module: nn.Module) -> State:
    """An optimizer's state with the shards of the centers put together; every process must call this."""
    return _with_centers(state, optimizer, module, CenterBasedLoss.gather_shards)


def shard_optimizer_state(state: State, optimizer: torch.optim.Optimizer, module: nn.Module) -> State:
    """This process's part of a state made by :func:`gather_optimizer_state`."""
    return _with_centers(state, optimizer, module, CenterBasedLoss.local_shard)


def _with_centers(
    state: State,
    optimizer: torch.optim.Optimizer,
    module: nn.Module,
    convert: Callable[[CenterBasedLoss, Tensor], Tensor],
) -> State:
    """The state with `convert(loss, tensor)` in place of each tensor that belongs to sharded centers."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    losses = {id(loss.centers): loss for loss in sharded_losses(module).values()}
    converted = dict(state["state"])
    for i, parameter in enumerate(parameters):
        if id(parameter) in losses and i in converted:
            loss = losses[id(parameter)]
            converted[i] = {
                name: convert(loss, value) if isinstance(value, Tensor) and value.ndim > 0 else value
                for name, value in converted[i].items()
            }
    return {**state, "state": converted}
