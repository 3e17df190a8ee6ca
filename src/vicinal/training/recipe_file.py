"""Reading a recipe file: its values, and the line of every key for messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from vicinal.utils.errors import InputError, one_line
from vicinal.utils.plain_yaml import MAX_CHARACTERS, compose_yaml, construct_yaml, problem_of

DATA_SUFFIXES = (".csv", ".parquet", ".npy")


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
            InputError: it cannot be read, is not a YAML mapping, has a key twice, has a value that is not plain or
                contains itself, or exceeds the limits of :mod:`vicinal.utils.plain_yaml`.
        """
        path = Path(path)
        text = _read(path)
        with _yaml_errors(path):
            root = compose_yaml(text)
        if not isinstance(root, yaml.MappingNode):
            raise InputError(f"{path}:1: a recipe is a mapping such as `epochs: 30`")
        file = cls(path, {})
        file._add_lines(root, "")
        with _yaml_errors(path):
            file.values.update(construct_yaml(root))
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
                raise InputError(f"{self.path}:{line}: {one_line(key.value, 80)} is given twice; keep one")
            keys.add(key.value)
            inner = name if key.value == "init_args" else f"{name}.{key.value}".lstrip(".")
            self.lines.setdefault(inner, line)
            self._add_lines(value, inner)


def _read(path: Path) -> str:
    try:
        if path.is_dir() or path.suffix.lower() in DATA_SUFFIXES:
            raise InputError(f"{path} is not a recipe, a YAML file of settings; data is given as --data.source {path}")
        if not path.is_file() and path.exists():
            raise InputError(f"cannot read the recipe {path}: it is not a file")  # such as a pipe, which may never end
        if path.stat().st_size > 4 * MAX_CHARACTERS:
            raise InputError(f"cannot read the recipe {path}: it is larger than {4 * MAX_CHARACTERS:,} bytes")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        hint = "" if path.suffix else f"; images are given as --data.source {path}"
        raise InputError(f"cannot read the recipe {path}: {error.strerror}{hint}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not YAML: not text in UTF-8") from None


@contextmanager
def _yaml_errors(path: Path) -> Iterator[None]:
    """Raise errors of YAML as InputError with file and line."""
    try:
        yield
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise InputError(f"{where}: {problem_of(error)}") from None
