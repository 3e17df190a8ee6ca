"""Imports: public names of a package when they are first used, and code that a file names, if the user allows it."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from vicinal.utils.errors import InputError, one_line


def lazy_imports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` of a package whose public names are imported on first use.

    The names and the modules that define them are read from the `from` imports, with absolute names, in the block
    `if TYPE_CHECKING:` of the package, so that type checkers, editors and the interpreter see the same imports. All of
    them are public, which `from module import name as name` says to type checkers; `__all__` is the list of them unless
    the package has one.
    """
    module = sys.modules[package]
    homes = dict(_type_checking_imports(Path(str(module.__file__)).read_text(encoding="utf-8")))
    vars(module).setdefault("__all__", sorted(homes))

    def get_attribute(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if homes[name] == package:  # a submodule
            return importlib.import_module(f"{package}.{name}")
        found = getattr(importlib.import_module(homes[name]), name)
        setattr(module, name, found)
        return found

    class Package(ModuleType):
        def __reduce__(self) -> tuple[Any, ...]:  # by name, as modules of the usual class are by cloudpickle
            return importlib.import_module, (self.__name__,)

        def __setattr__(self, name: str, value: Any) -> None:
            # Importing a submodule binds it to its own name, which may be that of a public function in it.
            is_home = isinstance(value, ModuleType) and homes.get(name) == value.__name__
            super().__setattr__(name, getattr(value, name) if is_home else value)

    module.__class__ = Package

    def list_names() -> list[str]:
        return sorted({*module.__all__, *(name for name in vars(module) if name.startswith("__"))})

    return get_attribute, list_names


def _type_checking_imports(source: str) -> Iterator[tuple[str, str]]:
    """Yield each name imported in the blocks `if TYPE_CHECKING:` of a module, and the module that it comes from."""
    for block in ast.parse(source).body:
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING":
            for statement in block.body:
                if isinstance(statement, ast.ImportFrom) and statement.module:
                    yield from ((alias.name, statement.module) for alias in statement.names)


def import_allowed(path: str, allow_imports: Sequence[str]) -> Any:
    """Import a class or function by its path, such as `my_models.Net`, if the user allows its module or package.

    Raises:
        InputError: its module, or the one that defines it, is not allowed, cannot be imported, or does not have it.
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
    """Whether a module is a package or in it."""
    return f"{module}.".startswith(f"{package}.")


def import_module(module: str) -> None:
    """Import a module that the user allows; an InputError gives whatever its code raises."""
    if module in sys.modules:
        return
    try:
        importlib.import_module(module)
    except Exception as error:  # whatever the user's own code raises
        raise InputError(f"--allow_import {module}: it cannot be imported ({one_line(error, 200)})") from error
