"""For all tests of pair weighting: a batch, its gradients, and the losses of the library."""

import inspect
from collections.abc import Callable

import torch
from torch import Tensor

import vicinal.losses
from tests.losses.batches import nasty_batches
from vicinal.mining import MultiSimilarityMiner

MS_MINER = MultiSimilarityMiner()
BATCHES = nasty_batches()
LABELS = torch.tensor([2, 0, 1, 0, 3, 2, 1, 1, 0, 3, 2, 0, 5])
OFFERED = {name: value for name in vicinal.losses.__all__ if inspect.isclass(value := getattr(vicinal.losses, name))}
OF_CENTERS = {name for name, loss in OFFERED.items() if issubclass(loss, vicinal.losses.CenterBasedLoss)}
"""They have no pairs of samples."""


def batch(n: int = 13, d: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradients(function: Callable[..., Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
    leaves = [each.clone().requires_grad_() for each in inputs]
    return torch.autograd.grad(function(*leaves), leaves, allow_unused=True, materialize_grads=True)
