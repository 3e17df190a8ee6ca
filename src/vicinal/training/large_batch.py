"""Batches of any size: two-stage backpropagation, whose memory is that of a micro-batch.

A loss of all pairs of a batch is not a sum over images: its gradient cannot be added up over smaller batches. But given
the gradient with respect to the embeddings, backpropagation from the embeddings into the network is a sum over images.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.fsdp import FSDPModule
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from vicinal.utils.errors import InputError

_warned: WeakSet[nn.Module] = WeakSet()


def embed_in_micro_batches(
    model: nn.Module,
    images: Tensor | Sequence[Tensor],
    micro_batch_size: int | None,
    prepare: Callable[[Tensor, slice], Tensor] | None = None,
) -> Tensor:
    """Embed a batch in the memory of a micro-batch, for a loss that has the gradient of the whole batch.

    The images are embedded micro-batch by micro-batch, without a graph. When the gradient with respect to the
    embeddings comes back from the loss, each micro-batch is embedded again, now with a graph, and its part of the
    gradient is backpropagated into the network. A training step is written as before. It takes one more forward pass,
    about a third more time, and of its memory only images and embeddings grow with the batch.

    The rest of the step does not change: losses with parameters or a memory, loss scaling, accumulation of gradients,
    and `DistributedDataParallel`, if this is called inside the module that it wraps, work as before.

    The second pass repeats the first exactly: autocast, torch's generators (dropout, stochastic depth), the modules'
    training modes and the model's buffers are as they were the first time, and buffers end as after one pass. Other
    state that a forward pass reads and changes, such as generators of its own, is not repeated; gradient checkpointing
    inside the model must be the kind with `use_reentrant=False`. The gradient is that of the whole batch unless images
    see each other in the model: batch normalization in training causes a warning, once per model.

    Reference: Patel et al., "Recall@k Surrogate Loss with Large Batches and Similarity Mixup", CVPR 2022, Algorithm 1,
    after Revaud et al., "Learning with Average Precision", ICCV 2019.

    Args:
        model: from images [m, ...] to embeddings [m, d].
        images: [n, ...], on any device; each micro-batch is moved to the model's. Or a list of n images [...] that
            differ in size.
        micro_batch_size: images per pass, m; the last pass may have fewer. None, or n and more: one pass, with an
            ordinary graph. 1 for images in a list.
        prepare: maps each micro-batch, on its device, and its rows in the batch to the model's input, identically in
            both passes; None: the identity.

    Returns:
        [n, d], on the model's device.

    Raises:
        InputError: micro_batch_size is not a whole number from 1 up, or not 1 for images in a list; the list is empty;
            the model is wrapped by DistributedDataParallel or gives no tensor.

    Example:
        >>> from vicinal.losses import MarginLoss
        >>> model, loss = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.1)), MarginLoss()
        >>> optimizer = torch.optim.SGD([*model.parameters(), *loss.parameters()], lr=0.1)
        >>> images, labels = torch.randn(100, 8), torch.arange(100) // 4
        >>> embeddings = embed_in_micro_batches(model, images, micro_batch_size=16)
        >>> loss(embeddings, labels).backward()
        >>> optimizer.step()
    """
    tensors = [images] if isinstance(images, Tensor) else [image[None] for image in images]
    _check(model, micro_batch_size, images)
    device = next((parameter.device for parameter in model.parameters()), tensors[0].device)
    prepare = prepare or (lambda images, rows: images)
    if micro_batch_size is None or len(images) <= micro_batch_size:
        return model(prepare(tensors[0].to(device, non_blocking=True), slice(0, len(images))))
    _warn_of_batch_norm(model, micro_batch_size, len(images))
    trained: dict[str, Tensor] = {name: each for name, each in model.named_parameters() if each.requires_grad}
    if any(isinstance(module, FSDPModule) for module in model.modules()):
        # Its hooks gather the weights of a layer and shard their gradient, in each pass: the second one sends that to
        # the model's own parameters, and is a node of the graph by one that stands for them all.
        trained = {"": torch.zeros((), requires_grad=bool(trained))}
    forward = _Forward(model, list(trained), micro_batch_size, device, prepare)
    return cast(Tensor, _TwoStages.apply(forward, *tensors, *trained.values()))


class _Forward:
    """A forward pass over the micro-batches of a batch, and the state needed to repeat it."""

    def __init__(
        self,
        model: nn.Module,
        trained: list[str],
        micro_batch_size: int,
        device: torch.device,
        prepare: Callable[[Tensor, slice], Tensor],
    ) -> None:
        self.model, self.trained, self.micro_batch_size, self.device = model, trained, micro_batch_size, device
        self.prepare = prepare
        self.buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        self.modes = {module: module.training for module in model.modules()}
        self.random = _random_states(device)
        kind, dtype = device.type, torch.get_autocast_dtype(device.type)
        # Without the cache of autocast: in older versions of torch, weights cached by the first pass have no graph.
        self.autocast = torch.autocast(kind, dtype, torch.is_autocast_enabled(kind), cache_enabled=False)

    def embed(self, images: Sequence[Tensor]) -> Tensor:
        """The embeddings of all images, tensors [.., ...]."""
        with self.autocast:
            # Copied: an embedding may be a view of a larger tensor, as a class token is, which should be freed.
            parts = (_tensor(self.model(part)) for part in self._inputs(images))
            return torch.cat([part.clone() for part in parts])

    def backward(self, images: Sequence[Tensor], gradient: Tensor, parameters: list[Tensor]) -> None:
        """Backpropagate the gradient of the embeddings to images and parameters, leaves that stand in for the model's.

        The model's own parameters get their gradients once, from the graph in which this pass is a node, as their hooks
        expect: `DistributedDataParallel` reduces a gradient when it arrives. The model's buffers stay as the first pass
        left them.
        """
        buffers = {name: buffer.clone() for name, buffer in self.buffers.items()}
        tensors = {**dict(zip(self.trained, parameters, strict=True)), **buffers}
        tensors.pop("", None)
        with torch.enable_grad(), _kept_random_states(self.device), _in_modes(self.modes):
            _set_random_states(self.random, self.device)
            for part, upstream in zip(self._inputs(images), self._parts([gradient]), strict=True):
                with self.autocast:
                    embeddings = functional_call(self.model, tensors, (part,))
                with _kept_random_states(self.device):  # the first pass had no draws of a backward pass
                    embeddings.backward(upstream)

    def _parts(self, tensors: Sequence[Tensor]) -> Iterator[Tensor]:
        return (part for tensor in tensors for part in torch.split(tensor, self.micro_batch_size))

    def _inputs(self, images: Sequence[Tensor]) -> Iterator[Tensor]:
        """The inputs of the model, micro-batch by micro-batch."""
        first = 0
        for part in self._parts(images):
            yield self.prepare(part.to(self.device, non_blocking=True), slice(first, first + len(part)))
            first += len(part)


def _tensor(output: object) -> Tensor:
    if not isinstance(output, Tensor):
        raise InputError(f"embed_in_micro_batches: the model must give a tensor [m, d], not a {type(output).__name__}")
    return output


@contextmanager
def _in_modes(modes: dict[nn.Module, bool]) -> Iterator[None]:
    """In this context, each module has the training mode that it had before."""
    now = {module: module.training for module in modes}
    _set_modes(modes)
    try:
        yield
    finally:
        _set_modes(now)


def _set_modes(modes: dict[nn.Module, bool]) -> None:
    for module, training in modes.items():
        module.training = training  # not by `train`, which some modules overrule


class _TwoStages(torch.autograd.Function):
    """Both passes as one node of a graph, from images and parameters to embeddings."""

    @staticmethod
    def forward(ctx: Any, forward: _Forward, *tensors: Tensor) -> Tensor:
        """The embeddings, from images (one tensor, or one per image) and then the parameters."""
        ctx.recompute_backward, ctx.num_images = forward.backward, len(tensors) - len(forward.trained)
        ctx.save_for_backward(*tensors)  # so that torch raises if one is changed before the second pass
        return forward.embed(tensors[: ctx.num_images])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        leaves = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in ctx.saved_tensors]
        ctx.recompute_backward(leaves[: ctx.num_images], gradient, leaves[ctx.num_images :])
        return None, *(leaf.grad for leaf in leaves)


def _random_states(device: torch.device) -> list[Tensor]:
    """The states of torch's generators that a model on this device draws from."""
    states = [torch.get_rng_state()]
    return states if device.type == "cpu" else [*states, torch.get_device_module(device).get_rng_state(device)]


def _set_random_states(states: list[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    for state in states[1:]:
        torch.get_device_module(device).set_rng_state(state, device)


@contextmanager
def _kept_random_states(device: torch.device) -> Iterator[None]:
    states = _random_states(device)
    try:
        yield
    finally:
        _set_random_states(states, device)


def _check(model: nn.Module, micro_batch_size: object, images: Tensor | Sequence[Tensor]) -> None:
    if micro_batch_size is not None and (
        type(micro_batch_size) is not int or micro_batch_size < 1
    ):  # True is an int too
        raise InputError(f"micro_batch_size = {micro_batch_size!r} must be a whole number, at least 1, or None")
    if not isinstance(images, Tensor) and (micro_batch_size != 1 or not len(images)):
        problem = f"micro_batch_size = {micro_batch_size!r} must be 1" if len(images) else "no images"
        raise InputError(f"embed_in_micro_batches: {problem}; images in a list are embedded one by one")
    if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
        raise InputError(
            "embed_in_micro_batches: call it inside the module that DistributedDataParallel wraps, with the bare model"
        )


def _warn_of_batch_norm(model: nn.Module, micro_batch_size: int, batch_size: int) -> None:
    norms = (module for module in model.modules() if isinstance(module, _BatchNorm))
    if model in _warned or not any(norm.training or norm.running_mean is None for norm in norms):
        return
    _warned.add(model)
    warnings.warn(
        f"batch normalization in training sees {micro_batch_size} images at a time and not all {batch_size}: the "
        'gradient is not that of the whole batch; freeze it as Embedder(freeze_batch_norm="statistics") does, in a '
        "recipe by model.freeze_batch_norm",
        stacklevel=3,
    )
