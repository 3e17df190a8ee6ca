"""Functions that Numba compiles when they are first called. Importing this module imports numba."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar, cast

import numba
from numba.core.caching import FunctionCache

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function, **options: Any) -> Function:
    """Compile a function when it is first called, without the interpreter lock, and cache the code on disk if possible.

    The code is compiled in memory if neither the folder of the package nor that of the user can be written, if the disk
    is full, or if the cached files are damaged; these are then written again. The options are those of `numba.njit`.
    """
    compiled: Any = numba.njit(nogil=True, **options)(function)
    with suppress(RuntimeError):  # no folder can be written
        compiled._cache = _Cache(function)  # type: ignore[no-untyped-call]
    return cast(Function, compiled)


class _Cache(FunctionCache):
    """The cache of Numba, but without errors: it raises them for damaged files and full disks."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except Exception:  # unpickling a damaged file raises many types of errors
            with suppress(Exception):
                self.flush()  # type: ignore[no-untyped-call]  # so that the next process does not meet them again
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(Exception):
            super().save_overload(sig, data)  # type: ignore[no-untyped-call]
