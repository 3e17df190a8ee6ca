"""Building networks of unknown size: bounds of their tensors, modules and memory."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module

from vicinal.utils.errors import InputError
from vicinal.utils.memory import check_memory

MAX_TENSORS = 20_000
"""More than any published network has."""
MODULES_PER_TENSOR, MORE_MODULES = 20, 1_000
"""Networks have about two modules per tensor, since some modules, such as activations, have no weights."""
MAX_BUFFER_BYTES = 10**9
"""For buffers of networks with less weights, of which few megabytes are usual."""


@contextmanager
def limited_build(what: str, max_tensors: int = MAX_TENSORS) -> Iterator[None]:
    """Bound the tensors and modules of networks built inside, best on the meta device.

    Args:
        what: the start of the message, such as the file that asks for the network.
        max_tensors: the number of weights and buffers above which building is stopped.

    Raises:
        InputError: a bound is exceeded; raised where that happens, before the network is complete.
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
    """Check that there is memory for a network which was built on the meta device."""
    check_memory(sum(_num_bytes(network)), what)


def _num_bytes(network: nn.Module) -> tuple[int, int]:
    """The sizes of all weights and of all buffers."""
    weights, buffers = network.parameters(), network.buffers()
    return sum(each.nbytes for each in weights), sum(each.nbytes for each in buffers)
