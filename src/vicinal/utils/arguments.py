"""Checks of arguments that many classes share. Each raises an InputError that names the class, argument and value."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import TypeGuard

from vicinal.utils.errors import InputError


def check_positive(owner: object, **values: float | None) -> None:
    """Check that every value is a finite number above 0, or None."""
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            raise InputError(f"{type(owner).__name__}: {name} = {value} must be positive")


def check_finite(owner: object, **values: float | None) -> None:
    """Check that every value is a finite number, or None."""
    for name, value in values.items():
        if value is not None and not math.isfinite(value):
            raise InputError(f"{type(owner).__name__}: {name} = {value} must be a finite number")


def check_nonnegative(owner: object, **values: float | None) -> None:
    """Check that every value is a finite number of at least 0, or None."""
    for name, value in values.items():
        if value is not None and not 0 <= value < math.inf:
            raise InputError(f"{type(owner).__name__}: {name} = {value} must not be negative")


def check_positive_integer(owner: object, **values: int | None) -> None:
    """Check that every value is an integer of at least 1, or None."""
    for name, value in values.items():
        if value is not None and not (is_integer(value) and value >= 1):
            raise InputError(f"{type(owner).__name__}: {name} = {value} must be at least 1, a whole number")


def check_seed(owner: object, seed: int) -> None:
    """Check that a seed is a Python integer of at least 0."""
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"{type(owner).__name__}: seed = {seed} must be a whole number from 0 up")


def check_list(name: str, value: object, wanted: str) -> None:
    """Check that a value is a list or another iterable, but not a string."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InputError(f"{name} is {value!r}; give a list of {wanted}")


def is_integer(value: object) -> TypeGuard[int]:
    """Whether the value is an integer of Python or NumPy; a boolean is not one."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether the value is a real number of Python or NumPy; a boolean is not one."""
    return isinstance(value, Real) and not isinstance(value, bool)
