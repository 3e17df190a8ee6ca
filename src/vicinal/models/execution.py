"""How a network is built within bounds, and how it is run: memory, device, precision, training or evaluation mode."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from vicinal.similarity.embeddings import normalize
from vicinal.utils.errors import InputError, one_line
from vicinal.utils.memory import check_memory

Precision = Literal["auto", "32", "bf16", "16"]
UsedPrecision = Literal["32", "bf16", "16"]

DTYPES: dict[str, torch.dtype] = {"32": torch.float32, "bf16": torch.bfloat16, "16": torch.float16}
MAX_TENSORS = 20_000  # more than any published network has
MODULES_PER_TENSOR, MORE_MODULES = 20, 1_000
"""Networks have about two modules per tensor, since some modules, such as activations, have no weights."""
MAX_BUFFER_BYTES = 10**9  # for buffers of networks with smaller weights; a few megabytes are usual


@contextmanager
def limited_build(what: str, max_tensors: int = MAX_TENSORS) -> Iterator[None]:
    """Bound the tensors and modules of networks built inside, best on the meta device.

    The error is raised where a bound is exceeded, before the network is complete; `what` is the start of its message.
    """
    thread, counts = threading.get_ident(), Counter[str]()
    limits = {"tensors": max_tensors, "modules": MODULES_PER_TENSOR * max_tensors + MORE_MODULES}

    def count(kind: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            counts[kind] += threading.get_ident() == thread  # the hooks are those of all threads
            if counts[kind] > limits[kind]:
                raise InputError(f"{what} asks for a network of more than {limits[kind]:,} {kind}")

        return hook

    handles = [
        torch_module.register_module_parameter_registration_hook(count("tensors")),
        torch_module.register_module_buffer_registration_hook(count("tensors")),
        torch_module.register_module_module_registration_hook(count("modules")),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def check_buffers(what: str, network: nn.Module) -> None:
    """Check that the buffers of a network which was built on the meta device are not much larger than its weights."""
    weights, buffers = _num_bytes(network)
    limit = max(MAX_BUFFER_BYTES, weights)
    if buffers > limit:
        sizes = f"{buffers / 1e9:,.1f} GB of buffers for {weights / 1e9:,.3f} GB of weights"
        raise InputError(f"{what} asks for {sizes}; at most {limit / 1e9:,.1f} GB are allowed")


def check_network_memory(what: str, network: nn.Module) -> None:
    """Check that memory suffices for a network which was built on the meta device."""
    check_memory(sum(_num_bytes(network)), what)


def _num_bytes(network: nn.Module) -> tuple[int, int]:
    """The sizes of all weights and of all buffers."""
    weights, buffers = network.parameters(), network.buffers()
    return sum(each.nbytes for each in weights), sum(each.nbytes for each in buffers)


def used_precision(precision: Precision, device: torch.device | str) -> UsedPrecision:
    """The precision on a device: auto is bf16 on a GPU that computes in bfloat16, else 32."""
    if precision != "auto":
        return precision
    return "bf16" if torch.device(device).type == "cuda" and gpu_has_bfloat16() else "32"


def gpu_has_bfloat16() -> bool:
    """Whether this machine has a GPU that computes in bfloat16, and does not emulate it."""
    return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)


def autocast_to(precision: UsedPrecision, device: torch.device) -> torch.autocast:
    """The context in which a network on a device computes in a precision."""
    return torch.autocast(device.type, dtype=DTYPES[precision], enabled=precision != "32")


def check_device(device: object) -> None:
    """Check that a device exists and can compute."""
    given: Any = device
    try:
        torch.empty(1, device=given)
    except Exception as error:  # backends raise several types of errors
        problem = one_line(error, 150)
        raise InputError(
            f"device {one_line(str(device), 80)} cannot be used: {problem}; use another, such as cpu"
        ) from error
    if torch.device(given).type == "meta":
        raise InputError("device meta holds no values; use a device that computes, such as cpu or cuda")


def usable_device(name: str | None) -> str:
    """Return the device if :func:`check_device` finds it usable; None is a GPU where there is one, else the CPU."""
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    check_device(name)
    return name


def unit_vectors(vectors: Tensor, training: bool) -> Tensor:
    """L2-normalize vectors [n, d]; in training the gradient of a zero vector is bounded, which exports cannot hold."""
    return normalize(vectors) if training else F.normalize(vectors, dim=-1)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation mode, and restore the mode of each of its modules afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
