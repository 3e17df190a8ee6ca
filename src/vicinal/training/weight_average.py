"""The exponential moving average of the weights of a training run, which is evaluated and saved in their place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from vicinal.training.strategy import own_part

WARMUP = 10  # steps; without them a run of a few thousand would be evaluated with nearly its initial weights


class WeightAverage:
    """An exponential moving average of parameters, and of the statistics of batch normalization.

    After step t = 1, 2, ..., ``average = d * average + (1 - d) * weights`` with
    ``d = min(decay, (1 + t) / (10 + t))``, from the initial weights on.

    Reference: Polyak and Juditsky, SIAM J. Control Optim. 1992; the decay of the first steps is that of TensorFlow's
    `ExponentialMovingAverage`.

    Args:
        module: the module that is trained.
        names: the names of its parameters that are trained.
        decay: the decay per step; None: there is no average, and nothing has an effect.

    Example:
        >>> module = nn.Linear(1, 1, bias=False)
        >>> average = WeightAverage(module, ["weight"], decay=0.5)
        >>> before = module.weight.item()
        >>> _ = nn.init.constant_(module.weight, before + 1)
        >>> average.update(step=1)
        >>> with average.in_module():
        ...     print(f"{module.weight.item() - before:.2f}")
        0.82
    """

    def __init__(self, module: nn.Module, names: Iterable[str], decay: float | None) -> None:
        self.decay = decay
        self.tensors = _averaged_tensors(module, names) if decay is not None else {}
        self.averages = [tensor.clone() for tensor in self._parts()]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights after a step, counted from 1, to the average."""
        if self.decay is not None:
            decay = min(self.decay, (1 + step) / (WARMUP + step))
            torch._foreach_lerp_(self.averages, self._parts(), 1 - decay)

    @contextmanager
    def in_module(self) -> Iterator[None]:
        """With the average in place of the weights; what is loaded into the module then is the new average."""
        self.swap()
        try:
            yield
        finally:
            self.swap()

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the average and the weights."""
        for tensor, average in zip(self._parts(), self.averages, strict=True):
            value = tensor.clone()
            tensor.copy_(average)
            average.copy_(value)

    def _parts(self) -> list[Tensor]:
        """What this process holds of the tensors that are averaged."""
        return [own_part(tensor.detach()) for tensor in self.tensors.values()]

    def select(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A copy of the part of a module's state that is averaged."""
        return {name: value.detach().clone() for name, value in state.items() if name in self.tensors}


def _averaged_tensors(module: nn.Module, names: Iterable[str]) -> dict[str, Tensor]:
    parameters = dict(module.named_parameters())
    statistics = {
        f"{name}.{key}": buffer
        for name, norm in module.named_modules()
        if isinstance(norm, _BatchNorm)
        for key, buffer in norm.named_buffers()
        if buffer.is_floating_point()
    }
    return {**{name: parameters[name] for name in names}, **statistics}
