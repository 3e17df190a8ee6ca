"""Weights, gradients and class centers on several processes: replicated, or sharded."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from lightning_fabric.strategies.ddp import DDPStrategy
from lightning_fabric.strategies.model_parallel import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import get_total_norm

from vicinal.losses import CenterBasedLoss
from vicinal.models import Embedder
from vicinal.models.backbones import blocks_of
from vicinal.utils import distributed
from vicinal.utils.errors import InputError

BUFFERS = "forward_sync_buffers"  # the option, as newer versions of torch call it, to exchange buffers in each step
if BUFFERS not in inspect.signature(DistributedDataParallel).parameters:
    BUFFERS = "broadcast_buffers"

State = dict[str, Any]


def create_strategy(
    num_processes: int, shards_weights: bool, find_unused_parameters: bool
) -> DDPStrategy | ModelParallelStrategy | str:
    """Fabric's strategy for a number of processes; with one process there is nothing to divide.

    Buffers are not exchanged in every step: those of the first process are evaluated and saved.
    """
    if num_processes == 1:
        return "auto"
    if shards_weights:
        return ModelParallelStrategy(_shard, data_parallel_size=num_processes, tensor_parallel_size=1)
    options: dict[str, Any] = {"find_unused_parameters": find_unused_parameters, BUFFERS: False}
    return DDPStrategy(**options)


def _shard(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Shard the embedders of a module block by block; every process holds the rest in full.

    Gathered weights keep their data type, and autocast converts them as it does without shards.
    """
    for parameter in module.parameters():
        parameter.data = parameter.data.contiguous()  # FSDP takes no other memory format
    whole = {parameter for parameter in module.parameters() if parameter.ndim == 0}
    options: dict[str, Any] = {"mesh": mesh["data_parallel"], "reshard_after_forward": True}
    if whole:
        if "ignored_params" not in inspect.signature(fully_shard).parameters:
            raise InputError("strategy = fsdp: scalar weights, such as that of model.learned_p, need torch 2.7")
        options["ignored_params"] = whole
    for embedder in [part for part in module.modules() if isinstance(part, Embedder)]:
        for block in blocks_of(embedder.backbone):
            fully_shard(block, **options)
        fully_shard(embedder, **options)
    return module.to(mesh.device_type)


def own_part(tensor: Tensor) -> Tensor:
    """The part of a tensor that this process holds, in the same memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """A tensor with the parts of all processes; every process must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def part_like(parameter: Tensor, tensor: Tensor) -> Tensor:
    """This process's part of a whole tensor, if the parameter that it belongs to is sharded."""
    if not isinstance(parameter, DTensor) or tensor.shape != parameter.shape:
        return tensor
    mesh, tensor = parameter.device_mesh, tensor.contiguous()
    part = [*tensor.chunk(mesh.size()), *mesh.size() * [tensor[:0]]][mesh.get_local_rank()].to(parameter.to_local())
    shape, stride = tensor.shape, tensor.stride()
    return DTensor.from_local(part, mesh, parameter.placements, run_check=False, shape=shape, stride=stride)


def gathered(value: Any) -> Any:
    """A state with whole tensors on the CPU of rank 0 in place of sharded ones; every process must call this."""
    if isinstance(value, dict):
        return {name: gathered(each) for name, each in value.items()}
    if not isinstance(value, DTensor):
        return value
    tensor = whole(value.detach())
    return tensor.cpu() if distributed.rank() == 0 else value  # other ranks hold one whole tensor at a time


@torch.no_grad()
def put_together(module: nn.Module) -> None:
    """Gather the weights of a module after training on the CPU of rank 0; every process must call this."""
    for part in module.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            if isinstance(parameter, DTensor):
                setattr(part, name, nn.Parameter(gathered(parameter), parameter.requires_grad))


@torch.no_grad()
def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Average the gradients of unsharded parameters over processes, with one message."""
    trained = [each for each in parameters if each.requires_grad and not isinstance(each, DTensor)]
    if not trained:
        return
    parts = [torch.zeros_like(each) if each.grad is None else each.grad for each in trained]
    mean = distributed.all_reduce_mean(torch.cat([part.reshape(-1) for part in parts]))
    for parameter, values in zip(trained, torch.split(mean, [part.numel() for part in parts]), strict=True):
        parameter.grad = values.view(parameter.shape)


def sharded_losses(module: nn.Module) -> dict[str, CenterBasedLoss]:
    """The losses in a module whose centers are sharded, by their names in the module."""
    return {
        name: part for name, part in module.named_modules() if isinstance(part, CenterBasedLoss) and part.is_sharded
    }


def exclude_from_ddp(module: nn.Module, precision: str) -> None:
    """Exclude sharded centers from `DistributedDataParallel`, before it wraps the module.

    float16 is refused, since its loss scale would differ between processes.
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

    `total_squares` is the sum of :func:`shard_squares` over processes; None: it is computed with one message.
    """
    own = shard_squares(module)
    if own is None:
        return norm
    total = distributed.all_reduce_sum(own) if total_squares is None else total_squares
    return (norm.square() - own + total).clamp_min(0).sqrt()


def gather_optimizer_state(state: State, optimizer: torch.optim.Optimizer, module: nn.Module) -> State:
    """An optimizer's state with merged shards; those of weights are merged on rank 0.

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
    """The state with `convert(parameter, tensor)` in place of each tensor that is not a scalar."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    converted = {
        i: {
            name: convert(parameters[i], value) if isinstance(value, Tensor) and value.ndim > 0 else value
            for name, value in values.items()
        }
        for i, values in state["state"].items()
    }
    return {**state, "state": converted}
