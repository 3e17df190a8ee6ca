"""Checks of constructor arguments that many classes share; each raises InputError with class, name and value."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import TypeGuard

from vicinal.errors import InputError


def check_positive(owner: object, **values: float | None) -> None:
    """Every value must be a finite number above 0; None passes."""
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            raise InputError(f"{type(owner).__name__}: {name} = {value} must be positive")


def check_finite(owner: object, **values: float | None) -> None:
    """Every value must be a finite number; None passes."""
    for name, value in values.items():
        if value is not None and not math.isfinite(value):
            raise InputError(f"{type(owner).__name__}: {name} = {value} must be a finite number")


def check_not_negative(owner: object, **values: float | None) -> None:
    """Every value must be a finite number and at least 0; None passes."""
    for name, value in values.items():
        if value is not None and not 0 <= value < math.inf:
            raise InputError(f"{type(owner).__name__}: {name} = {value} must not be negative")


def check_at_least_one(owner: object, **counts: int | None) -> None:
    """Every count must be a whole number and at least 1; None passes."""
    for name, count in counts.items():
        if count is not None and not (is_whole(count) and count >= 1):
            raise InputError(f"{type(owner).__name__}: {name} = {count} must be at least 1, a whole number")


def is_whole(value: object) -> TypeGuard[int]:
    """Whether the value is a whole number, of Python or numpy; a truth is none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether the value is a real number, of Python or numpy; a truth is none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_list(name: str, value: object, wanted: str) -> None:
    """The value must be a list, or anything else to go through but one text."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InputError(f"{name} is {value!r}; give a list of {wanted}")


def check_seed(owner: object, seed: int) -> None:
    """A seed must be a whole number, and not negative."""
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"{type(owner).__name__}: seed = {seed} must be a whole number from 0 up")
