"""Randomness that is a function of numbers: one seed out of several, and uniform draws from integer keys."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio: multiples of it are spread evenly


def mixed_seed(*numbers: int) -> int:
    """A 64-bit seed; numbers that differ anywhere give seeds that have nothing to do with each other.

    Args:
        numbers: not negative.

    Example:
        >>> mixed_seed(0, 1) == mixed_seed(0, 1), mixed_seed(0, 1) == mixed_seed(1, 0)
        (True, False)
    """
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def uniform(seed: int, keys: Tensor, draws: int) -> Tensor:
    """Numbers in [0, 1) that are a function of seed and key alone, however the keys are cut into pieces.

    Args:
        seed: not negative.
        keys: int64 [n].
        draws: numbers for each key.

    Returns:
        float32 [n, draws], multiples of 2**-24.

    Example:
        >>> whole = uniform(0, torch.arange(4), 2)
        >>> torch.equal(whole[2:], uniform(0, torch.arange(2, 4), 2))
        True
    """
    return _uniform(keys, _signed(seed), draws)


# An operator of its own, for torch.compile to leave alone: what torch 2.15 makes of these shifts on a CPU writes beyond
# the end of its result.
@torch.library.custom_op("vicinal::uniform", mutates_args=())
def _uniform(keys: Tensor, seed: int, draws: int) -> Tensor:
    bits = _mixed(keys[:, None] + _signed(seed * GOLDEN))
    bits = _mixed(bits + torch.arange(1, draws + 1, device=keys.device) * _signed(GOLDEN))
    return ((bits >> 40) & (2**24 - 1)).float() / 2**24


@_uniform.register_fake
def _(keys: Tensor, seed: int, draws: int) -> Tensor:
    return torch.empty(len(keys), draws, device=keys.device)


def _mixed(bits: Tensor) -> Tensor:
    """The finaliser of splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014)."""
    bits = (bits ^ _shifted(bits, 30)) * _signed(0xBF58476D1CE4E5B9)
    bits = (bits ^ _shifted(bits, 27)) * _signed(0x94D049BB133111EB)
    return bits ^ _shifted(bits, 31)


def _shifted(bits: Tensor, by: int) -> Tensor:
    return (bits >> by) & (2 ** (64 - by) - 1)  # without the mask the sign would be shifted in


def _signed(number: int) -> int:
    """The same 64 bits as int64."""
    return (number + 2**63) % 2**64 - 2**63
