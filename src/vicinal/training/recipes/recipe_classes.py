"""The classes that a recipe may name: those that Vicinal offers, and those of packages that the user allows."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping, Sequence
from inspect import isabstract
from pathlib import Path
from typing import TYPE_CHECKING, Any

import vicinal
from vicinal.utils.imports import import_module, is_in

if TYPE_CHECKING:
    from vicinal.training.recipes.recipe_schema import Setting

LOSS_FILES = (
    "losses/__init__.py",
    "memory.py",
    "correction.py",
    "distillation.py",
    "matryoshka.py",
    "mixing.py",
    "weighting/__init__.py",
)
# Losses that are not named ...Loss:
OTHER_LOSSES = ("CrossBatchMemory", "ForwardCorrection", "Matryoshka", "S2SD", "SiMix", "WeightedSum")


class OfferedClasses:
    """Finds classes by the names in recipes. Nothing is imported but the packages that the user allows.

    Args:
        allow_imports: packages or modules whose classes a recipe may name too, such as `my_losses`; they are imported.

    Raises:
        InputError: an allowed package cannot be imported.

    Example:
        >>> from vicinal.losses import Loss
        >>> OfferedClasses().find(Loss, "MarginLoss").__name__
        'MarginLoss'
        >>> OfferedClasses().find(Loss, "os.system") is None
        True
    """

    def __init__(self, allow_imports: Sequence[str] = ()) -> None:
        self.allow_imports = tuple(allow_imports)
        for name in self.allow_imports:
            import_module(name)

    def all(self, base: type) -> dict[str, type]:
        """The classes of a kind that a recipe may name, by name; abstract ones cannot be created."""
        found: dict[str, type] = {}
        pending = [base]
        while pending:
            kind = pending.pop(0)
            pending += kind.__subclasses__()
            if self._offers(kind) and not (kind.__name__.startswith("_") or isabstract(kind)):
                found.setdefault(kind.__name__, kind)
        return found

    def find(self, base: type, path: object) -> type | None:
        """The class of a name, such as `MarginLoss` or `my_losses.MyLoss`; None if a recipe may not name it."""
        if not isinstance(path, str):
            return None
        module, _, name = path.rpartition(".")
        if module and self._is_allowed(module):
            import_module(module)
        classes = self.all(base)
        if not module:
            return classes.get(name)
        kind = getattr(sys.modules.get(module), name, None) if self._is_allowed(module) or _is_ours(module) else None
        return kind if isinstance(kind, type) and issubclass(kind, base) and self._offers(kind) else None

    def of_setting(self, setting: Setting, path: object) -> type | None:
        """The class of a name, if a setting may name it; without a name, that of its default."""
        assert setting.base_class is not None
        if path is None:
            default = type(setting.default)
            return default if issubclass(default, setting.base_class) else None
        return self.find(setting.base_class, path)

    def _offers(self, kind: type) -> bool:
        return _is_ours(kind.__module__) or self._is_allowed(kind.__module__)

    def _is_allowed(self, module: str) -> bool:
        return any(is_in(module, package) for package in self.allow_imports)


def class_and_arguments(value: Any) -> tuple[Any, Any]:
    """The name of a class and its arguments, of a name alone or of `class_path` and `init_args`."""
    if not isinstance(value, Mapping):
        return value, {}
    beside = {name: each for name, each in value.items() if name not in ("class_path", "init_args")}
    inner = value.get("init_args")
    if inner is None or isinstance(inner, Mapping):
        return value.get("class_path"), {**(inner or {}), **beside}
    return value.get("class_path"), inner


def loss_names() -> list[str]:
    """The losses that Vicinal offers, read from `__all__` of their modules without importing these.

    Example:
        >>> {"TripletLoss", "SiMix", "CrossBatchMemory"} <= set(loss_names())
        True
    """
    names: list[str] = []
    for file in LOSS_FILES:
        body = ast.parse((Path(vicinal.__file__).parent / file).read_text(encoding="utf-8")).body
        assigned = [each for each in body if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "__all__"]
        names += [name for each in assigned for name in ast.literal_eval(each.value)]
    return sorted(name for name in names if name.endswith("Loss") or name in OTHER_LOSSES)


def constructor_arguments(file: str, name: str) -> list[str]:
    """The arguments of a class of Vicinal, read from its file without importing it.

    Example:
        >>> constructor_arguments("models/embedder.py", "Embedder")[:2]
        ['backbone', 'dim']
    """
    tree = ast.parse((Path(vicinal.__file__).parent / file).read_text(encoding="utf-8"))
    body = next(each.body for each in tree.body if isinstance(each, ast.ClassDef) and each.name == name)
    arguments = next(each.args for each in body if isinstance(each, ast.FunctionDef) and each.name == "__init__")
    return [each.arg for each in (*arguments.args[1:], *arguments.kwonlyargs)]


def import_path(kind: type) -> str:
    """The shortest path from which a class can be imported.

    Example:
        >>> from vicinal.losses import MarginLoss
        >>> import_path(MarginLoss)
        'vicinal.losses.MarginLoss'
    """
    parts = kind.__module__.split(".")
    parents = (".".join(parts[: number + 1]) for number in range(len(parts)))
    module = next(name for name in parents if getattr(sys.modules.get(name), kind.__name__, None) is kind)
    return f"{module}.{kind.__name__}"


def _is_ours(module: str) -> bool:
    return is_in(module, "vicinal")
