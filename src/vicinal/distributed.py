"""Everything about processes: who we are, and gathering tensors from all processes with their gradients."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from vicinal.errors import InputError

Value = TypeVar("Value")


def world_size() -> int:
    """Number of processes that train together; 1 without `torch.distributed`."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This process's number, from 0."""
    return dist.get_rank() if world_size() > 1 else 0


def gather(tensor: Tensor) -> Tensor:
    """Stack the rows of all processes' tensors, in order of rank; gradients flow back to the rows' owners.

    The gradient of a row is the sum over processes of the gradients each one has for it. With one process it is the
    tensor itself.

    Args:
        tensor: [n, ...], the same shape and type on every process.

    Returns:
        [n x processes, ...].

    Raises:
        InputError: processes hold different shapes.

    Example:
        >>> gather(torch.tensor([1.0, 2.0]))
        tensor([1., 2.])
    """
    if world_size() == 1:
        return tensor
    _check_same_shape(tensor)
    return _Gather.apply(tensor)


def mean(value: Tensor) -> Tensor:
    """The mean over processes of a tensor that carries no gradient."""
    return value if world_size() == 1 else total(value) / world_size()


def total(value: Tensor) -> Tensor:
    """The sum over processes of a tensor that carries no gradient."""
    if world_size() == 1:
        return value
    summed = value.detach().clone()
    dist.all_reduce(summed)
    return summed


def log_sum_exp(value: Tensor) -> Tensor:
    """The logarithm of the sum over processes of the exponentials, of a tensor that carries no gradient."""
    if world_size() == 1:
        return value
    largest = value.detach().clone()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    largest.clamp_min_(torch.finfo(value.dtype).min)
    return total((value - largest).exp()).log() + largest


def same(value: Tensor) -> bool:
    """Whether all processes have the same numbers."""
    if world_size() == 1:
        return True
    most, least = value.clone(), value.clone()
    dist.all_reduce(most, op=dist.ReduceOp.MAX)
    dist.all_reduce(least, op=dist.ReduceOp.MIN)
    return bool(torch.equal(most, least))


def from_first(value: Value) -> Value:
    """The first process's value, on every process; for plain values."""
    if world_size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box)
    return box[0]


def agree(flag: bool) -> bool:
    """Whether any process says yes; all processes get the same answer."""
    if world_size() == 1:
        return flag
    votes = torch.tensor([int(flag)], device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(votes)
    return bool(votes.item())


def barrier() -> None:
    """Wait until every process has come here."""
    if world_size() > 1:
        dist.barrier()


def _check_same_shape(tensor: Tensor) -> None:
    # A gather of unequal shapes hangs or corrupts; asking first costs one small message.
    lengths = torch.zeros(world_size(), dtype=torch.int64, device=tensor.device)
    lengths[rank()] = len(tensor)
    dist.all_reduce(lengths)
    if lengths.min() != lengths.max():
        raise InputError(f"processes hold batches of different sizes: {lengths.tolist()}; make them equal")


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        parts = [torch.empty_like(tensor) for _ in range(world_size())]
        dist.all_gather(parts, tensor.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Tensor:
        total = upstream[0].contiguous()
        dist.all_reduce(total)
        return total.chunk(world_size())[rank()]
