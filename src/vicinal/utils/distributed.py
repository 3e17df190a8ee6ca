"""Collective operations over the processes of `torch.distributed`; with one process they do nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from vicinal.utils.errors import InputError

Value = TypeVar("Value")

_lengths_are_equal = False  # set by `equal_lengths`


def world_size() -> int:
    """Number of processes; 1 without `torch.distributed`."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Number of this process, from 0."""
    return dist.get_rank() if world_size() > 1 else 0


def row_spans(n: int) -> list[slice]:
    """The rows of each process, of n in all; the last ones may have fewer, or none."""
    size = -(-n // world_size())
    return [slice(min(rank * size, n), min((rank + 1) * size, n)) for rank in range(world_size())]


def own_rows(n: int) -> slice:
    """The rows of this process, of n in all."""
    return row_spans(n)[rank()]


def all_gather(tensor: Tensor) -> Tensor:
    """Concatenate tensors [n, ...] of all processes along the first dimension, in order of rank, with gradients.

    The gradient of a row is the sum over processes of the gradients that each of them has for it. With one process, the
    tensor itself is returned; different lengths raise an InputError.
    """
    if world_size() == 1:
        return tensor
    on_device = _on_device_of_group(tensor)
    _check_same_length(on_device)
    return _AllGather.apply(on_device).to(tensor.device)


def all_gather_labeled(tensor: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`all_gather` of rows [n, d] and their labels [n], of any type and on any device, by one message."""
    if world_size() == 1:
        return tensor, labels
    rows = _on_device_of_group(tensor)
    numbers = labels.to(rows.device, non_blocking=True)
    _check_same_length(rows)
    gathered: tuple[Tensor, Tensor] = _AllGather.apply(rows, numbers)
    return gathered[0].to(tensor.device), gathered[1].to(labels.device)


@contextmanager
def equal_lengths() -> Iterator[None]:
    """In this context the caller guarantees that processes gather tensors of equal lengths: no message checks it."""
    global _lengths_are_equal
    before, _lengths_are_equal = _lengths_are_equal, True
    try:
        yield
    finally:
        _lengths_are_equal = before


def all_gather_parts(part: Tensor, lengths: Sequence[int]) -> Tensor:
    """Concatenate parts [lengths[rank], ...] of differing, known lengths in order of rank, without gradient."""
    if world_size() == 1:
        return part
    padded = part.new_zeros((max(lengths), *part.shape[1:]))
    padded[: len(part)] = part
    gathered = _gather(_on_device_of_group(padded)).to(part.device).view(world_size(), *padded.shape)
    return torch.cat([each[:length] for each, length in zip(gathered, lengths, strict=True)])


def all_to_all(parts: Sequence[Tensor]) -> list[Tensor]:
    """Send a part [n_i] to each process i, and receive a part of the same length from it, without gradient."""
    if world_size() == 1:
        return list(parts)
    sent, lengths = _on_device_of_group(torch.cat([*parts])), [len(part) for part in parts]
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, lengths, lengths)
    return list(torch.split(received.to(parts[0].device), lengths))


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


def all_reduce_values(values: Sequence[float | Tensor]) -> list[float]:
    """The sum over processes of each of some numbers, by one message; tensors [] may be on any device."""
    device = next((value.device for value in values if isinstance(value, Tensor)), torch.device("cpu"))
    device = _on_device_of_group(torch.empty(0, device=device)).device if world_size() > 1 else device
    packed = [torch.as_tensor(value, dtype=torch.float64).detach().to(device, non_blocking=True) for value in values]
    total = torch.stack(packed)  # so that the host waits once
    if world_size() > 1:
        dist.all_reduce(total)
    return total.cpu().tolist()


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


def all_gather_objects(value: Value) -> list[Value]:
    """The values of all processes, in order of rank; for objects that can be pickled."""
    values = [value] * world_size()
    if world_size() > 1:
        dist.all_gather_object(values, value)
    return values


@torch.no_grad()
def broadcast_tensors(tensors: Sequence[Tensor]) -> None:
    """Give tensors the values of the process of rank 0, in place, by one message for each type of numbers."""
    if world_size() == 1:
        return
    for dtype in sorted({each.dtype for each in tensors}, key=str):
        same = [each for each in tensors if each.dtype == dtype]
        flat = _on_device_of_group(torch.cat([each.detach().reshape(-1) for each in same]))
        dist.broadcast(flat, src=0)
        for each, values in zip(same, torch.split(flat, [each.numel() for each in same]), strict=True):
            each.copy_(values.view(each.shape))


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
    if _lengths_are_equal:
        return
    lengths = torch.zeros(world_size(), dtype=torch.int64, device=tensor.device)
    lengths[rank()] = len(tensor)
    dist.all_reduce(lengths)
    if lengths.min() != lengths.max():
        raise InputError(f"processes hold batches of different sizes: {lengths.tolist()}; make them equal")


def _gather(tensor: Tensor) -> Tensor:
    """The tensors of all processes, of equal shapes, one after the other."""
    gathered = tensor.new_empty((world_size() * len(tensor), *tensor.shape[1:]))
    dist.all_gather_into_tensor(gathered, tensor.contiguous())
    return gathered


class _AllGather(torch.autograd.Function):
    """Gathers a tensor, alone or with labels behind each of its rows."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, labels: Tensor | None = None) -> Any:
        if labels is None:
            return _gather(tensor)
        parts = [tensor, labels[:, None]]
        gathered = _gather(torch.cat([part.contiguous().view(torch.uint8) for part in parts], dim=1))
        widths = [part.shape[1] * part.element_size() for part in parts]
        rows, numbers = (
            each.clone(memory_format=torch.contiguous_format).view(part.dtype)  # aligned, also if there are no rows
            for each, part in zip(torch.split(gathered, widths, dim=1), parts, strict=True)
        )
        ctx.mark_non_differentiable(numbers)
        return rows, numbers[:, 0]

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        gradient = grad_outputs[0].contiguous()
        own = gradient.new_empty((len(gradient) // world_size(), *gradient.shape[1:]))
        dist.reduce_scatter_tensor(own, gradient)
        return own, None
