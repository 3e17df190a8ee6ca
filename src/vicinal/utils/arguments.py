"""Arguments: checks that many classes share, which name class, argument and value, and their texts in docstrings."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from numbers import Integral, Real
from types import FunctionType, NoneType
from typing import Any, TypeGuard

from vicinal.utils.errors import InputError, one_line

PLAIN_VALUES = "give numbers, text, true, false, null, or lists and mappings of these"
MAX_MAGNITUDE, MAX_INTEGER = 1e12, 2**40
"""Limits of arguments: far beyond these, losses leave the range of float32, and integers that of 64 bits."""
MAX_PLAIN_DEPTH, MAX_PLAIN_VALUES = 16, 10_000
"""Limits of nested values: a few aliases of a YAML file can stand for billions of values."""


def _name(owner: object) -> str:
    """The name of a function, or of the class of an object."""
    return owner.__name__ if isinstance(owner, FunctionType) else type(owner).__name__


def check_positive(owner: object, **values: object) -> None:
    """Check that every value is a number from 1e-12 to 1e12."""
    for name, value in values.items():
        if not (_is_within_limits(value) and value >= 1 / MAX_MAGNITUDE):
            raise InputError(f"{_name(owner)}: {name} = {shown(value)} must be positive{_limits(value)}")


def check_finite(owner: object, **values: object) -> None:
    """Check that every value is a finite number, from -1e12 to 1e12."""
    for name, value in values.items():
        if not _is_within_limits(value):
            limits = _limits(value) if is_number(value) and abs(value) < math.inf else ""
            raise InputError(f"{_name(owner)}: {name} = {shown(value)} must be a finite number{limits}")


def check_nonnegative(owner: object, **values: object) -> None:
    """Check that every value is a number from 0 to 1e12."""
    for name, value in values.items():
        if not (_is_within_limits(value) and value >= 0):
            raise InputError(f"{_name(owner)}: {name} = {shown(value)} must be at least 0{_limits(value)}")


def check_fraction(owner: object, **values: object) -> None:
    """Check that every value is a number from 0 to 1."""
    for name, value in values.items():
        if not (is_number(value) and 0 <= value <= 1):
            raise InputError(f"{_name(owner)}: {name} = {shown(value)} must be from 0 to 1")


def check_positive_integer(owner: object, **values: object) -> None:
    """Check that every value is an integer from 1 to 2**40."""
    for name, value in values.items():
        if not (is_integer(value) and 1 <= value <= MAX_INTEGER):
            most = f" and at most {MAX_INTEGER}" if is_integer(value) and value > 1 else ""
            raise InputError(f"{_name(owner)}: {name} = {shown(value)} must be at least 1{most}, a whole number")


def check_nonnegative_integer(owner: object, **values: object) -> None:
    """Check that every value is an integer from 0 to 1e12."""
    check_nonnegative(owner, **values)
    for name, value in values.items():
        if not is_integer(value):
            raise InputError(f"{_name(owner)}: {name} = {shown(value)} must be a whole number")


def check_bool(owner: object, **values: object) -> None:
    """Check that every value is True or False."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise InputError(f"{_name(owner)}: {name} = {shown(value)} must be True or False")


def check_choice(owner: object, choices: tuple[str, ...], **values: object) -> None:
    """Check that every value is one of some words."""
    for name, value in values.items():
        if value not in choices:
            words = " or ".join(f'"{word}"' for word in choices)
            raise InputError(f"{_name(owner)}: {name} = {one_line(repr(value), 80)} must be {words}")


def given(**values: object) -> dict[str, object]:
    """The values that are not None, for checks of optional arguments."""
    return {name: value for name, value in values.items() if value is not None}


def shown(value: object) -> str:
    """A value as messages show it: on one line of limited length."""
    try:
        return one_line(repr(value) if isinstance(value, str) else str(value), 80)
    except Exception:  # Python prints no integer of more than 4,300 digits, and objects of others may do anything
        return f"<{type(value).__name__}>"


def _is_within_limits(value: object) -> TypeGuard[float]:
    return is_number(value) and abs(value) <= MAX_MAGNITUDE  # also refuses NaN


def _limits(value: object) -> str:
    """The end of a message about a number that is refused for its magnitude alone."""
    if not is_number(value):
        return " and a number"
    if not abs(value) < math.inf:  # also of NaN
        return " and finite"
    is_too_large_or_small = MAX_MAGNITUDE < abs(value) < math.inf or 0 < abs(value) < 1 / MAX_MAGNITUDE
    return f", from {1 / MAX_MAGNITUDE:g} to {MAX_MAGNITUDE:g} in magnitude" if is_too_large_or_small else ""


def check_seed(owner: object, seed: object) -> None:
    """Check that a seed is a Python integer of at least 0."""
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"{_name(owner)}: seed = {shown(seed)} must be a whole number from 0 up")


def check_list(name: str, value: object, wanted: str) -> None:
    """Check that a value is a list or another iterable, but not a string."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InputError(f"{name} is {one_line(repr(value), 80)}; give a list of {wanted}")


def check_not_masked(values: object, name: str) -> None:
    """Raise InputError, which begins with `name`, if a value is masked: other functions of NumPy ignore the mask."""
    import numpy as np  # help does without it

    if not isinstance(values, np.ma.MaskedArray):
        return
    number = int(np.sum(np.ma.getmaskarray(values)))
    if number:
        counted = f"{number:,} of {values.size:,} values {'is' if number == 1 else 'are'} masked"
        raise InputError(f"{name}: {counted}; give an array in which every value counts")


def is_integer(value: object) -> TypeGuard[int]:
    """Whether the value is an integer of Python or NumPy; a boolean is not one."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether the value is a real number of Python or NumPy; a boolean is not one."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_plain_values(name: str, value: object) -> None:
    """Check that a value is plain: a number, text, true, false, null, or a list or mapping of plain values.

    A mapping with the key `class_path` is refused, as other programs create an object from it.
    """
    pending, count = [(name, value, 0)], 0
    while pending:
        where, item, depth = pending.pop()
        count += 1
        if depth > MAX_PLAIN_DEPTH or count > MAX_PLAIN_VALUES:
            limits = f"{MAX_PLAIN_DEPTH} levels or {MAX_PLAIN_VALUES:,} values"
            raise InputError(f"{name} has more than {limits}; give fewer")
        if isinstance(item, Mapping):
            _check_keys(where, item)
            pending += [(f"{where}.{key}", each, depth + 1) for key, each in item.items()]
        elif isinstance(item, (list, tuple)):
            pending += [(f"{where}[{i}]", each, depth + 1) for i, each in enumerate(item)]
        elif not isinstance(item, (str, int, float, NoneType)):
            raise InputError(f"{one_line(where, 80)} is of type {type(item).__name__}; {PLAIN_VALUES}")


def _check_keys(where: str, mapping: Mapping[object, object]) -> None:
    if "class_path" in mapping:
        raise InputError(f"{one_line(where, 80)}: class_path would create an object; {PLAIN_VALUES}")
    for key in mapping:
        if not isinstance(key, str):
            raise InputError(f"{one_line(where, 80)}: the key {one_line(repr(key), 80)} is not text; {PLAIN_VALUES}")


def require(condition: bool, key: str, value: object, expected: str) -> None:
    """Raise InputError, naming the setting and what is expected of it, unless the condition holds."""
    if not condition:
        raise InputError(f"{key} = {value} must be {expected}")


def require_left_out(settings: Any, prefix: str, names: tuple[str, ...], unless: str) -> None:
    """Raise InputError if one of the fields of a dataclass, which would have no effect, is not at its default."""
    for each in fields(settings):
        if each.name in names:
            value = getattr(settings, each.name)
            default = each.default if each.default_factory is MISSING else each.default_factory()
            require(value == default, f"{prefix}{each.name}", value, f"left out unless {unless}")


def first_paragraph(kind: type) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join(inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].split())


def argument_texts(kind: type) -> dict[str, str]:
    """The description of each argument in the docstrings of a class and its base classes, on one line each."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        _, _, after = f"\n{inspect.cleandoc(base.__doc__ or '')}\n".partition("\nArgs:\n")
        section = re.split(r"^(?=\S)", after, maxsplit=1, flags=re.MULTILINE)[0]
        for name, text in re.findall(r"^    (\w+): (.*\n(?:     .*\n|\n)*)", section, re.MULTILINE):
            texts[name] = " ".join(text.split())
    return texts
