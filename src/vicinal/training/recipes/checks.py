"""Checks of settings: an error names the setting, its value and what is expected of it."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from typing import Any

from vicinal.utils.errors import InputError


def require(condition: bool, key: str, value: object, expected: str) -> None:
    """Raise InputError, naming the setting and what is expected of it, unless the condition holds."""
    if not condition:
        raise InputError(f"{key} = {value} must be {expected}")


def require_left_out(settings: Any, prefix: str, names: tuple[str, ...], unless: str) -> None:
    """Raise InputError if one of the fields of a dataclass, which would have no effect, is not at its default."""
    for each in fields(settings):
        if each.name in names:
            value = getattr(settings, each.name)
            require(value == _default(each), f"{prefix}{each.name}", value, f"left out unless {unless}")


def _default(each: Field[Any]) -> Any:
    return each.default if each.default_factory is MISSING else each.default_factory()
