"""Importing code that a file names: only from packages that the user allows, never on the word of the file alone."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

from vicinal.utils.errors import InputError, one_line


def import_allowed(path: str, allow_imports: Sequence[str]) -> Any:
    """Import a class or function that a file names.

    Args:
        path: its import path, such as `my_models.Net`.
        allow_imports: the packages or modules that the user allows.

    Raises:
        InputError: its module, or the one that defines it, is in none of them, cannot be imported, or does not have it.

    Example:
        >>> import_allowed("math.sqrt", ["math"])(4.0)
        2.0
        >>> import_allowed("os.system", ["math"])
        Traceback (most recent call last):
        vicinal.utils.errors.InputError: os.system is code that would be imported; if you trust it, add --allow_import \
os (in Python allow_imports=["os"])
    """
    module, _, name = path.rpartition(".")
    if not module or not any(is_in(module, package) for package in allow_imports):
        package = path.partition(".")[0]
        raise InputError(
            f"{path} is code that would be imported; if you trust it, add --allow_import {package} "
            f'(in Python allow_imports=["{package}"])'
        )
    import_module(module)
    try:
        found = getattr(sys.modules[module], name)
    except AttributeError:
        raise InputError(f"{path}: the module {module} has no {name}") from None
    origin = str(getattr(found, "__module__", None))  # a module also has the names that it imports from others
    if not any(is_in(origin, package) for package in allow_imports):
        raise InputError(f"{path} is of the module {origin}, whose import is not allowed")
    return found


def is_in(module: str, package: str) -> bool:
    """Whether a module is a package or in it.

    Example:
        >>> is_in("my_models.nets", "my_models"), is_in("my_models_2", "my_models")
        (True, False)
    """
    return f"{module}.".startswith(f"{package}.")


def import_module(module: str) -> None:
    """Import a module that the user allows.

    Raises:
        InputError: its import fails, whatever its code raises.
    """
    if module in sys.modules:
        return
    try:
        importlib.import_module(module)
    except Exception as error:  # whatever the user's own code raises
        reason = one_line(str(error), 200) or type(error).__name__
        raise InputError(f"--allow_import {module}: it cannot be imported ({reason})") from error
