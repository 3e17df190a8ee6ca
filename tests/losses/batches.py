"""Batches on which losses of pairs tend to go wrong; every loss is tested on all of them."""

from __future__ import annotations

import torch
from torch import Tensor


def nasty_batches() -> dict[str, tuple[Tensor, Tensor]]:
    """Name -> (embeddings float64 [n, d], labels int64 [n])."""
    generator = torch.Generator().manual_seed(0)

    def random(n: int, d: int = 5) -> Tensor:
        return torch.randn(n, d, generator=generator, dtype=torch.float64)

    one = random(1)
    return {
        "unequal classes": (random(12), torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3])),
        "shuffled": (random(12), torch.tensor([2, 0, 1, 0, 3, 2, 1, 1, 0, 3, 2, 0])),
        "singletons": (random(6), torch.tensor([5, 9, 9, 7, 9, 6])),
        "all singletons": (random(4), torch.arange(4)),
        "one class": (random(5), torch.zeros(5, dtype=torch.int64)),
        "two of a class": (random(2), torch.tensor([3, 3])),
        "two of two classes": (random(2), torch.tensor([3, 4])),
        "one sample": (random(1), torch.tensor([1])),
        "duplicates": (torch.cat([one, one, one, random(3)]), torch.tensor([0, 0, 1, 1, 2, 2])),
        "collapsed": (one.repeat(6, 1), torch.tensor([0, 0, 1, 1, 2, 2])),
        "far labels": (random(6), torch.tensor([-7, -7, 2**40, 2**40, 0, 2**40 + 1])),
        "one dimension": (random(6, 1), torch.tensor([0, 0, 1, 1, 2, 2])),
        "opposites": (torch.cat([random(3), -random(3)]), torch.tensor([0, 1, 2, 0, 1, 2])),
    }
