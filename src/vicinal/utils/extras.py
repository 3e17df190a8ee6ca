"""Optional dependencies: packages that an extra of Vicinal installs, imported only where they are used."""

from __future__ import annotations

import importlib
from types import ModuleType

from vicinal.utils.errors import InputError


def import_extra(package: str, extra: str, purpose: str) -> ModuleType:
    """Import a package that is an optional dependency.

    Args:
        package: the name of the package.
        extra: the extra of Vicinal that installs it.
        purpose: what the package is needed for; the message of an error starts with it.

    Raises:
        InputError: the package is not installed.

    Example:
        >>> import_extra("no_such_package", "datasets", "hf:mnist")
        Traceback (most recent call last):
            ...
        vicinal.utils.errors.InputError: hf:mnist: needs the package no_such_package; pip install 'vicinal[datasets]'
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package.partition(".")[0]:  # the package is there, but one that it needs is not
            raise
        raise InputError(f"{purpose}: needs the package {package}; pip install 'vicinal[{extra}]'") from None
