"""Collective operations over the processes of `torch.distributed`; with one process they do nothing."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from vicinal.utils.errors import InputError

Value = TypeVar("Value")


def world_size() -> int:
    """Number of processes; 1 without `torch.distributed`."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Number of this process, from 0."""
    return dist.get_rank() if world_size() > 1 else 0


def all_gather(tensor: Tensor) -> Tensor:
    """Concatenate the tensors of all processes along the first dimension, in order of rank, with gradients.

    The gradient of a row is the sum over processes of the gradients that each of them has for it.

    Args:
        tensor: [n, ...], of the same shape and type on every process.

    Returns:
        [n * world_size, ...]; the tensor itself if there is one process.

    Raises:
        InputError: the processes hold tensors of different lengths.

    Example:
        >>> all_gather(torch.tensor([1.0, 2.0]))
        tensor([1., 2.])
    """
    if world_size() == 1:
        return tensor
    on_device = _on_device_of_group(tensor)
    _check_same_length(on_device)
    return _AllGather.apply(on_device).to(tensor.device)


def all_reduce_sum(value: Tensor) -> Tensor:
    """The sum over processes of a tensor, without gradient."""
    if world_size() == 1:
        return value
    total = _on_device_of_group(value.detach().clone())
    dist.all_reduce(total)
    return total.to(value.device)


def all_reduce_mean(value: Tensor) -> Tensor:
    """The mean over processes of a tensor, without gradient."""
    return value if world_size() == 1 else all_reduce_sum(value) / world_size()


def all_reduce_logsumexp(value: Tensor) -> Tensor:
    """The logarithm of the sum over processes of the exponentials of a tensor, without gradient."""
    if world_size() == 1:
        return value
    largest = _on_device_of_group(value.detach().clone())
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    largest = largest.to(value.device).clamp_min_(torch.finfo(value.dtype).min)
    return all_reduce_sum((value - largest).exp()).log() + largest


def all_equal(value: Tensor) -> bool:
    """Whether all processes hold equal tensors."""
    if world_size() == 1:
        return True
    largest, smallest = (_on_device_of_group(value.clone()) for _ in range(2))
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    dist.all_reduce(smallest, op=dist.ReduceOp.MIN)
    return bool(torch.equal(largest, smallest))


def broadcast_object(value: Value) -> Value:
    """The value of the process of rank 0, on every process; for objects that can be pickled."""
    if world_size() == 1:
        return value
    objects = [value]
    dist.broadcast_object_list(objects)
    return objects[0]


def any_process(flag: bool) -> bool:
    """Whether the flag is true on any process; the result is the same on all."""
    return flag if world_size() == 1 else bool(all_reduce_sum(torch.tensor([int(flag)])).item())


def barrier() -> None:
    """Wait until all processes have called this function."""
    if world_size() > 1:
        dist.barrier()


def _on_device_of_group(tensor: Tensor) -> Tensor:
    """The tensor on a device that the process group can send from; NCCL, for one, takes no tensors of the CPU."""
    devices = [each.partition(":")[0] for each in dist.get_backend_config().split(",")]  # of "cpu:gloo,cuda:nccl"
    return tensor if tensor.device.type in devices else tensor.to(devices[0])


def _check_same_length(tensor: Tensor) -> None:
    # Gathering tensors of different shapes hangs or corrupts memory; this check costs one small message.
    lengths = torch.zeros(world_size(), dtype=torch.int64, device=tensor.device)
    lengths[rank()] = len(tensor)
    dist.all_reduce(lengths)
    if lengths.min() != lengths.max():
        raise InputError(f"processes hold batches of different sizes: {lengths.tolist()}; make them equal")


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        parts = [torch.empty_like(tensor) for _ in range(world_size())]
        dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        total = grad_outputs[0].contiguous()
        dist.all_reduce(total)
        return total.chunk(world_size())[rank()]
