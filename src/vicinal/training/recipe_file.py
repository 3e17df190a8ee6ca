"""Reading a recipe file: its values, and the line of every key for messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from vicinal.utils.errors import InputError


@dataclass(frozen=True)
class RecipeFile:
    """The content of a recipe file.

    Args:
        path: the file.
        values: its settings, nested.
        lines: the line, from 1, of every key with dots. The arguments of a class, below `init_args`, are named without
            it; the elements of a list are named by their position, such as `loss.losses[0].alpha`.
    """

    path: Path
    values: dict[str, Any]
    lines: dict[str, int] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | Path) -> RecipeFile:
        """Read a file.

        Raises:
            InputError: it cannot be read, is not a YAML mapping, has a key twice, or has a value that contains itself.
        """
        path = Path(path)
        root = _compose(path)
        if not isinstance(root, yaml.MappingNode):
            raise InputError(f"{path}:1: a recipe is a mapping such as `epochs: 30`")
        file = cls(path, {})
        try:
            file._add_lines(root, "")
        except RecursionError:
            raise InputError(f"{path}: a value contains itself") from None
        file.values.update(yaml.safe_load(path.read_text(encoding="utf-8")))
        return file

    def _add_lines(self, node: yaml.Node, name: str) -> None:
        if isinstance(node, yaml.SequenceNode):
            for position, element in enumerate(node.value):
                inner = f"{name}[{position}]"
                self.lines[inner] = element.start_mark.line + 1
                self._add_lines(element, inner)
        elif isinstance(node, yaml.MappingNode):
            self._add_mapping(node, name)

    def _add_mapping(self, node: yaml.MappingNode, name: str) -> None:
        keys: set[str] = set()
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise InputError(f"{self.path}:{line}: a key must be a name")
            if key.value in keys:
                raise InputError(f"{self.path}:{line}: {key.value} is given twice; keep one")
            keys.add(key.value)
            inner = name if key.value == "init_args" else f"{name}.{key.value}".lstrip(".")
            self.lines.setdefault(inner, line)
            self._add_lines(value, inner)


def _compose(path: Path) -> yaml.Node | None:
    try:
        return yaml.compose(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the recipe {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise InputError(f"{where}: not YAML: {getattr(error, 'problem', None) or 'not text in UTF-8'}") from None
