"""Reproducible randomness: a seed derived from several integers, and uniform random numbers derived from keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

GOLDEN_GAMMA = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio, the increment of splitmix64


def derive_seed(*numbers: int) -> int:
    """Derive a 64-bit seed from integers of at least 0; different integers give statistically independent seeds."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


@contextmanager
def seeded(*numbers: int) -> Iterator[None]:
    """In this context, torch's CPU generator is seeded by these numbers; its state is restored afterwards."""
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would also seed the generators of the accelerators.
        torch.default_generator.manual_seed(derive_seed(*numbers))
        yield


def uniform(seed: int, keys: Tensor, num_samples: int) -> Tensor:
    """Random numbers [n, num_samples] in [0, 1), multiples of 2**-24, that depend on the seed and the key alone.

    They do not depend on how the keys, int64 [n], are batched.
    """
    return _uniform(keys, _to_int64(seed), num_samples)


# A custom operator, which torch.compile does not trace: the code that torch 2.15 generates for these shifts on a CPU
# writes beyond the end of its output.
@torch.library.custom_op("vicinal::uniform", mutates_args=())
def _uniform(keys: Tensor, seed: int, num_samples: int) -> Tensor:
    bits = _mix(keys[:, None] + _to_int64(seed * GOLDEN_GAMMA))
    bits = _mix(bits + torch.arange(1, num_samples + 1, device=keys.device) * _to_int64(GOLDEN_GAMMA))
    return ((bits >> 40) & (2**24 - 1)).float() / 2**24


@_uniform.register_fake
def _(keys: Tensor, seed: int, num_samples: int) -> Tensor:
    return torch.empty(len(keys), num_samples, device=keys.device)


def _mix(bits: Tensor) -> Tensor:
    """The finaliser of splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014)."""
    bits = (bits ^ _shift_right(bits, 30)) * _to_int64(0xBF58476D1CE4E5B9)
    bits = (bits ^ _shift_right(bits, 27)) * _to_int64(0x94D049BB133111EB)
    return bits ^ _shift_right(bits, 31)


def _shift_right(bits: Tensor, by: int) -> Tensor:
    """Logical shift to the right; that of int64 tensors is arithmetic and shifts in the sign."""
    return (bits >> by) & (2 ** (64 - by) - 1)


def _to_int64(number: int) -> int:
    """The integer modulo 2**64, in the range of int64."""
    return (number + 2**63) % 2**64 - 2**63
