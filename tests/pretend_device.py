"""A pretend GPU, for tests on machines without one.

Its tensors compute on the CPU, so their values are real. As on a GPU, operations that mix devices are refused. What
costs time on a GPU is counted: `waits`, where the host waits for the device, and `launches` of kernels.

    with pretend_device() as device:
        embeddings = on_device(torch.randn(8, 4))
        ...
    assert not device.waits

It follows PyTorch's own backends in Python: a tensor subclass, and a mode that sees every operation.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module, Parameter
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from vicinal.losses import soft_ranks, triplets
from vicinal.utils import seeds

NAME = "pretend"
_setup_privateuseone_for_python_backend(NAME)
DEVICE = torch.device(NAME, 0)
_module = torch.get_device_module(NAME)
_module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
_module.get_rng_state = lambda device=None: torch.zeros(16, dtype=torch.uint8)  # torch.utils.checkpoint asks for it
_module.set_rng_state = lambda state, device=None: None
CUSTOM_OPERATIONS = {
    operation._qualname: operation._init_fn
    for operation in (
        soft_ranks._count_above, soft_ranks._count_thresholds_above, soft_ranks._count_above_backward,
        triplets._sum_over_triplets, seeds._uniform,
    )
}  # fmt: skip
"""Operations of Vicinal, whose implementation runs on the device like any other code."""
HAVE_KERNELS = {name for name in CUSTOM_OPERATIONS if "uniform" not in name}
"""Those for which there is a Triton kernel."""

WAITS = {
    "_local_scalar_dense", "item", "is_nonzero", "nonzero", "equal", "masked_select", "unique_dim",
    "unique_consecutive", "_unique", "_unique2", "bincount", "histc", "_linalg_check_errors",
}  # fmt: skip
"""Operations whose result the host must see, or must know the shape of."""
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
VIEWS = {
    "view", "_unsafe_view", "reshape", "t", "transpose", "permute", "slice", "select", "expand", "unsqueeze", "squeeze",
    "detach", "alias", "as_strided", "split", "split_with_sizes", "unbind", "diagonal", "unfold", "lift_fresh",
    "_reshape_alias", "chunk", "narrow", "flatten", "unflatten", "empty", "empty_like", "new_empty", "empty_strided",
    "new_empty_strided",
}  # fmt: skip
"""Operations that start no kernel."""


class PretendTensor(Tensor):
    """A tensor on the pretend device; `values` has its values."""

    values: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> PretendTensor:
        size, strides = values.shape, values.stride()
        made = torch.Tensor._make_wrapper_subclass(cls, size, strides=strides, dtype=values.dtype, device=DEVICE)
        made.values = values
        return made

    def __repr__(self, **_: Any) -> str:
        return f"PretendTensor({self.values})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} on the pretend device outside of pretend_device()")


class PretendDevice(TorchDispatchMode):
    """The counts within :func:`pretend_device`.

    Attributes:
        waits: "operation, file:line" in Vicinal -> how often the host waited there.
        launches: number of operations that start a kernel.
        has_kernels: whether the operations that have a Triton kernel count as this kernel, and one that fills each
            result with zeros. Their values are computed without it.
        cpu_group: does the work of the process group of this device, which itself takes no tensors of the CPU.
    """

    def __init__(self, has_kernels: bool = False) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.launches = 0
        self.has_kernels = has_kernels
        self.cpu_group: dist.ProcessGroup | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func.namespace == "c10d":
            return self._communicate(func, args, kwargs)
        if self.has_kernels and func._schema.name in HAVE_KERNELS:
            return self._run_kernel(func._schema.name, args)
        if func._schema.name in CUSTOM_OPERATIONS:
            with self:
                return CUSTOM_OPERATIONS[func._schema.name](*args, **kwargs)
        operation = func._schema.name.partition("::")[2]
        tensors = _tensors(args, kwargs)
        target = None if kwargs.get("device") is None else torch.device(kwargs["device"])
        has_own = any(map(is_on_device, tensors))
        makes_own = has_own if target is None else target.type == NAME
        if operation == "copy_":
            makes_own = is_on_device(args[0])
        if not has_own and not makes_own:
            return func(*args, **kwargs)
        if has_own and operation not in ("_to_copy", "copy_"):
            _check_one_device(operation, args, tensors)
        self._count(operation, args, kwargs, makes_own)
        if target is not None:
            kwargs["device"] = torch.device("cpu")
        out = func(*tree_map(_values, args), **tree_map(_values, kwargs))
        if not makes_own:
            return out
        wrapped = tree_map(_on_device, out)
        return return_and_correct_aliasing(func, args, kwargs, wrapped) if has_own else wrapped

    def _run_kernel(self, name: str, args: Sequence[Any]) -> Any:
        out = CUSTOM_OPERATIONS[name](*tree_map(_values, args))
        self.launches += 1 + len(tree_leaves(out))
        return tree_map(_on_device, out)

    def _count(self, operation: str, args: Sequence[Any], kwargs: dict[str, Any], makes_own: bool) -> None:
        self.launches += operation not in VIEWS
        indices = args[1] if operation in INDEXING else ()
        by_mask = any(isinstance(each, Tensor) and each.dtype == torch.bool for each in indices)
        sizes = operation == "repeat_interleave" and kwargs.get("output_size") is None
        if operation in WAITS or by_mask or sizes or _copies_and_waits(operation, args, kwargs, makes_own):
            self.waits[f"{operation}, {_line()}"] += 1

    def _communicate(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """A collective operation on tensors of the device, by the group of the CPU; any other is refused by PyTorch."""
        if self.cpu_group is None or not all(map(is_on_device, _tensors(args, kwargs))):
            return func(*args, **kwargs)
        self.launches += 1
        types = [str(argument.type) for argument in func._schema.arguments]
        args = [
            self.cpu_group.boxed() if "ProcessGroup" in type else each for type, each in zip(types, args, strict=False)
        ]
        result = func(*tree_map(_values, args), **tree_map(_values, kwargs))
        return (args[0], result[-1]) if isinstance(result, tuple) else result  # in place; the last one is the handle


@contextmanager
def pretend_device(has_kernels: bool = False) -> Iterator[PretendDevice]:
    # Tensor subclasses have no views in inference mode.
    no_grad = patch("torch.inference_mode", lambda mode=True: torch.no_grad() if mode else nullcontext())
    with PretendDevice(has_kernels) as device, no_grad:
        yield device


def on_device(tensor: Tensor) -> Tensor:
    """A leaf on the pretend device with the values of a tensor, which is not counted."""
    return PretendTensor(tensor.detach().clone()).requires_grad_(tensor.requires_grad)


def module_on_device(module: Module) -> Module:
    """A module whose parameters and buffers are moved to the pretend device, without counting."""
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    moved = on_device(tensor)
                    tensors[name] = Parameter(moved, tensor.requires_grad) if isinstance(tensor, Parameter) else moved
    return module


def is_on_device(value: object) -> bool:
    return isinstance(value, PretendTensor)


def _copies_and_waits(operation: str, args: Sequence[Any], kwargs: dict[str, Any], makes_own: bool) -> bool:
    """Whether an operation copies between devices while the host waits."""
    if operation == "_to_copy":
        return is_on_device(args[0]) != makes_own and not (makes_own and kwargs.get("non_blocking"))
    if operation == "copy_":
        is_scalar = args[1].dim() == 0 and not is_on_device(args[1])
        return is_on_device(args[1]) != makes_own and not (makes_own and (is_scalar or (args[2:] or [False])[0]))
    return False


def _check_one_device(operation: str, args: Sequence[Any], tensors: Sequence[Tensor]) -> None:
    """Raise RuntimeError where CUDA does: of the CPU may be numbers, and the indices of a tensor of the device."""
    foreign = [each for each in tensors if not is_on_device(each) and each.dim() > 0]
    if operation in INDEXING and is_on_device(args[0]):
        foreign = [each for each in foreign if not any(each is index for index in args[1])]
    if foreign:
        raise RuntimeError(f"{operation}: expected all tensors to be on the same device, but found {NAME} and cpu")


def _line() -> str:
    frames = [frame for frame in traceback.extract_stack() if "/vicinal/" in frame.filename]
    return f"{frames[-1].filename.rpartition('/vicinal/')[2]}:{frames[-1].lineno}" if frames else "a test"


def _tensors(*values: Any) -> list[Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, Tensor)]


def _values(value: Any) -> Any:
    return value.values if isinstance(value, PretendTensor) else value


def _on_device(value: Any) -> Any:
    return PretendTensor(value) if isinstance(value, Tensor) and not is_on_device(value) else value
