"""Calls that are refused, each in one line."""

from collections.abc import Callable
from typing import Any

import pytest

from vicinal.utils.errors import InputError


def refused_call(message: str, call: Callable[..., object], *arguments: Any, **options: Any) -> None:
    """The call with these arguments raises an InputError of one line that matches the message."""
    with pytest.raises(InputError, match=message) as error:
        call(*arguments, **options)
    assert "\n" not in str(error.value)
