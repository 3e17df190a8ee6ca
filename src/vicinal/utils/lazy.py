"""Lazy imports of packages (PEP 562): a public name is imported when it is first used."""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def lazy_imports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` of a package whose public names are imported on first use.

    The names and the modules that define them are read from the package's own `if TYPE_CHECKING:` block, so that type
    checkers, editors and the interpreter see the same imports. The package lists the names in `__all__` as usual.

    Args:
        package: `__name__` of the package; its `__init__.py` has a block `if TYPE_CHECKING:` of `from` imports with
            absolute module names.

    Example:
        The `__init__.py` of a package::

            if TYPE_CHECKING:
                from vicinal.data.table import Table
            else:
                __getattr__, __dir__ = lazy_imports(__name__)

            __all__ = ["Table"]
    """
    module = sys.modules[package]
    homes = dict(_type_checking_imports(Path(str(module.__file__)).read_text(encoding="utf-8")))

    def get_attribute(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if homes[name] == package:  # a submodule
            return importlib.import_module(f"{package}.{name}")
        home = importlib.import_module(homes[name])  # this binds the module to its own name, which may be public too
        for public in {name, homes[name].rpartition(".")[2]}:
            if homes.get(public) == homes[name]:
                setattr(module, public, getattr(home, public))
        return getattr(home, name)

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
