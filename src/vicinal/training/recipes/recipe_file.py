"""Reading a recipe file and those that it extends: the values, and the place of every key for messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from vicinal.utils.errors import InputError, one_line
from vicinal.utils.plain_yaml import compose_yaml, construct_yaml, load_yaml, problem_of
from vicinal.utils.run_folder import RunFolder

DATA_SUFFIXES = (".csv", ".parquet", ".npy")
MAX_FILES = 32  # per recipe, with those that it extends
WHOLE = frozenset({"fractions", "classes", "confusions"})  # mappings that replace those of the extended recipe


class Place(NamedTuple):
    """Where a key is given."""

    path: Path
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass(frozen=True)
class RecipeFile:
    """The content of a recipe file, with that of the recipes that it extends.

    The key `extends` names one recipe file or a list of them, relative to the folder of the file. Its settings override
    those of the extended files, and later files override earlier ones: groups are merged key by key; lists and all
    other values are replaced, and so is a class with its arguments if another class is named.

    `places` has every key with dots. The arguments of a class, below `init_args`, are named without it; the elements of
    a list are named by their position, such as `loss.losses[0].alpha`.
    """

    path: Path
    values: dict[str, Any]
    places: dict[str, Place] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | Path) -> RecipeFile:
        """Read a file and those that it extends, within the limits of :mod:`vicinal.utils.plain_yaml`."""
        return cls._read_extended(Path(path), [], ())

    @classmethod
    def _read_extended(cls, path: Path, read: list[Path], below: tuple[Path, ...]) -> RecipeFile:
        """Read a file and those that it extends; `read` are all files so far, `below` those that lead to this one."""
        file = cls._read_one(path)
        read.append(path)
        extended, place = file.values.pop("extends", []), file.places.pop("extends", path)
        names = [extended] if isinstance(extended, str) else extended
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise InputError(f"{place}: extends must be the path of a recipe or a list of them")
        result = cls(path, {})
        for name in names:
            base = path.parent / name
            if base.resolve() in (*below, path.resolve()):
                raise InputError(f"{place}: extends {name}, which extends this file")
            if len(read) >= MAX_FILES:
                raise InputError(f"{place}: the recipe extends more than {MAX_FILES} files")
            if not base.is_file():
                raise InputError(f"{place}: extends {name}, but {base} does not exist")
            result = result._merged_with(cls._read_extended(base, read, (*below, path.resolve())))
        return result._merged_with(file)

    def place_of(self, key: str) -> Place | None:
        """The place of a key with dots, or of the nearest key above it; None if the file has neither."""
        while key and key not in self.places:
            key = key.rpartition(".")[0]
        return self.places.get(key)

    def _merged_with(self, other: RecipeFile) -> RecipeFile:
        places = dict(self.places)
        values = _merged(self.values, other.values, "", places)
        return RecipeFile(self.path, values, places | other.places)

    @classmethod
    def _read_one(cls, path: Path) -> RecipeFile:
        text = _read(path)
        with _yaml_errors(path):
            root = compose_yaml(text)
        if not isinstance(root, yaml.MappingNode):
            raise InputError(f"{path}:1: a recipe is a mapping such as `epochs: 30`")
        file = cls(path, {})
        file._add_places(root, "")
        with _yaml_errors(path):
            file.values.update(construct_yaml(root))
        return file

    def _add_places(self, node: yaml.Node, name: str) -> None:
        if isinstance(node, yaml.SequenceNode):
            for position, element in enumerate(node.value):
                inner = f"{name}[{position}]"
                self.places[inner] = Place(self.path, element.start_mark.line + 1)
                self._add_places(element, inner)
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
            self.places.setdefault(inner, Place(self.path, line))
            self._add_places(value, inner)


def _merged(base: Mapping[str, Any], own: Mapping[str, Any], prefix: str, places: dict[str, Place]) -> dict[str, Any]:
    """The values of `own` over those of `base`; the places of replaced values are deleted."""
    merged = dict(base)
    for name, value in own.items():
        key, before = f"{prefix}{name}" if name != "init_args" else prefix.removesuffix("."), base.get(name)
        if (both := _mappings(name, before, value)) is not None:
            merged[name] = _merged(*both, f"{key}.", places)
            continue
        merged[name] = value
        for place in [place for place in places if place == key or place.startswith((f"{key}.", f"{key}["))]:
            del places[place]
    return merged


def _mappings(name: str, before: Any, value: Any) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """The old and the new value of a key, if they are merged; None if the new one replaces the old one.

    A name stands for the class of that name. Arguments given without a class belong to the new class.
    """
    if name in WHOLE:
        return None
    if _is_name(before) and isinstance(value, Mapping):
        before = {"class_path": before}
    if _is_name(value) and isinstance(before, Mapping) and "class_path" not in before:
        value = {"class_path": value}
    if not isinstance(before, Mapping) or not isinstance(value, Mapping):
        return None
    if "class_path" in value and "class_path" not in before and isinstance(before.get("init_args", {}), Mapping):
        before = {"init_args": {**before, **before.get("init_args", {})}}
        before["init_args"].pop("init_args", None)
    same = value.get("class_path", before.get("class_path")) == before.get("class_path", value.get("class_path"))
    return (before, value) if same else None


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value.replace(".", "_").isidentifier()


def _read(path: Path) -> str:
    try:
        if RunFolder(path).recipe.is_file():
            remedy = f"its recipe is {RunFolder(path).recipe}, and --out {path} --resume continues it"
            raise InputError(f"{path} is the folder of a run, not a recipe; {remedy}")
        if path.is_dir() or path.suffix.lower() in DATA_SUFFIXES:
            raise InputError(f"{path} is not a recipe, a YAML file of settings; data is given as --data.source {path}")
        if not path.is_file() and path.exists():
            raise InputError(f"cannot read the recipe {path}: it is not a file")  # such as a pipe, which may never end
        return path.read_text(encoding="utf-8")
    except OSError as error:
        hint = "" if path.suffix else f"; images are given as --data.source {path}"
        raise InputError(f"cannot read the recipe {path}: {error.strerror}{hint}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not YAML: not text in UTF-8") from None


@contextmanager
def _yaml_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise InputError(f"{where}: {problem_of(error)}") from None


class Word(str):
    """A value of the command line that is not a list or mapping; its setting decides whether it is, say, a number."""


def parse_overrides(overrides: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Key and value of each setting on the command line, `--key=value` or `--key value`."""
    words = list(overrides)
    while words:
        word = words.pop(0)
        if not word.startswith("--") or word.startswith("--="):
            raise InputError(f"unknown argument {word}; a recipe comes first, then settings such as --epochs 3")
        key, equals, value = word[2:].partition("=")
        if not equals:
            if not words or words[0].startswith("--"):
                raise InputError(f"--{key} needs a value")
            value = words.pop(0)
        if not value.strip():
            raise InputError(f"--{key} needs a value")
        yield key, _parsed(key, value)


def _parsed(key: str, text: str) -> Any:
    if text[:1] not in ("{", "["):
        return None if text == "null" else Word(text)
    try:
        return load_yaml(text)
    except yaml.YAMLError as error:
        raise InputError(f"--{key} {one_line(text, 80)}: {problem_of(error)}") from None


def put_setting(given: dict[str, Any], key: str, value: Any) -> None:
    """Put a value into nested settings; the name of a class stands for its `class_path`."""
    if key.endswith(".class_path"):
        key, value = key.removesuffix(".class_path"), {"class_path": value}
    key_alone = key.removesuffix("+")
    *groups, name = [part for part in key_alone.split(".") if part != "init_args"] or [key_alone]
    for group in groups:
        given = _arguments(given)
        inner = given.get(group)
        given[group] = inner if isinstance(inner, dict) else {} if inner is None else {"class_path": inner}
        given = given[group]
    given = _arguments(given)
    if key.endswith("+"):
        value = [*_as_list(given.get(name)), *_as_list(value)]
    given[name] = _merged({name: given.get(name)}, {name: value}, "", {})[name]


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _arguments(group: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a class, where the group names one by its `class_path`; else the settings of the group."""
    if "class_path" not in group:
        return group
    arguments = group["init_args"] = group.get("init_args") or {}
    return arguments if isinstance(arguments, dict) else {}  # others are refused where the class is read
