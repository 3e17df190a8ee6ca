"""Training with class centers, or with weights, that are sharded over the processes.

`DistributedDataParallel` takes all parameters to be the same in every process. Sharded centers are excluded from it;
the norm of the gradient and the state of the optimizer are then those of all shards together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import get_total_norm

from vicinal.losses import CenterBasedLoss
from vicinal.training.processes.strategy import gathered, own_part, part_like
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


def sharded_centers(module: nn.Module) -> list[nn.Parameter]:
    """This process's shards of class centers."""
    return [loss.centers for loss in sharded_losses(module).values() if loss.centers is not None]


def shard_squares(module: nn.Module) -> Tensor | None:
    """The sum of squares of the gradient of this process's shards, []; None if nothing is sharded."""
    shards = [*sharded_centers(module), *(each for each in module.parameters() if isinstance(each, DTensor))]
    if not shards:
        return None
    gradients = [own_part(each.grad) for each in shards if each.grad is not None]
    return get_total_norm(gradients).square().to(shards[0].device)


def global_grad_norm(norm: Tensor, module: nn.Module, total_squares: float | None = None) -> Tensor:
    """The norm of the gradient with all shards, from that with this process's shards, both [].

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
    """An optimizer's state with the shards put together, those of weights on the process of rank 0.

    Every process must call this.
    """
    losses = _losses_by_centers(module)

    def whole(parameter: nn.Parameter, value: Tensor) -> Tensor:
        return losses[parameter].gather_shards(value) if parameter in losses else value

    gathered_state: State = gathered(_converted(state, optimizer, whole))
    return gathered_state


def shard_optimizer_state(state: State, optimizer: torch.optim.Optimizer, module: nn.Module) -> State:
    """This process's part of a state made by :func:`gather_optimizer_state`."""
    losses = _losses_by_centers(module)

    def part(parameter: nn.Parameter, value: Tensor) -> Tensor:
        return losses[parameter].local_shard(value) if parameter in losses else part_like(parameter, value)

    return _converted(state, optimizer, part)


def _losses_by_centers(module: nn.Module) -> dict[nn.Parameter, CenterBasedLoss]:
    return {loss.centers: loss for loss in sharded_losses(module).values() if loss.centers is not None}


def _converted(
    state: State, optimizer: torch.optim.Optimizer, convert: Callable[[nn.Parameter, Tensor], Tensor]
) -> State:
    """The state with `convert(parameter, tensor)` in place of each tensor that has the numbers of a parameter."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    converted = {
        i: {
            name: convert(parameters[i], value) if isinstance(value, Tensor) and value.ndim > 0 else value
            for name, value in values.items()
        }
        for i, values in state["state"].items()
    }
    return {**state, "state": converted}
