"""Settings of the command line, and how they override those of a recipe file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from vicinal.utils.errors import InputError, one_line
from vicinal.utils.plain_yaml import load_yaml, problem_of


class Word(str):
    """A value of the command line that is not a list or mapping; whether it is a number, say, its setting decides."""


def parse_overrides(overrides: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Key and value of each setting on the command line, `--key=value` or `--key value`.

    Raises:
        InputError: a word is not a setting, or a setting has no value, or one that is not plain.
    """
    words = list(overrides)
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            raise InputError(f"unknown argument {word}; a recipe comes first, then settings such as --epochs 3")
        key, equals, value = word[2:].partition("=")
        if not equals:
            if not words or words[0].startswith("--"):
                raise InputError(f"--{key} needs a value")
            value = words.pop(0)
        yield key, _parsed(key, value)


def _parsed(key: str, text: str) -> Any:
    """The value of a setting on the command line."""
    if text[:1] not in ("{", "["):
        return None if text == "null" else Word(text)
    try:
        return load_yaml(text)
    except yaml.YAMLError as error:
        raise InputError(f"--{key} {one_line(text, 80)}: {problem_of(error)}") from None


def put_setting(given: dict[str, Any], key: str, value: Any) -> None:
    """Put a value into nested settings; the name of a class stands for its `class_path`."""
    key_alone = key.removesuffix("+")
    *groups, name = [part for part in key_alone.split(".") if part != "init_args"] or [key_alone]
    for group in groups:
        given = _arguments(given)
        inner = given.get(group)
        given[group] = inner if isinstance(inner, dict) else {} if inner is None else {"class_path": inner}
        given = given[group]
    given = given if name == "class_path" else _arguments(given)
    if key.endswith("+"):
        value = [*_as_list(given.get(name)), *_as_list(value)]
    given[name] = {**given[name], **value} if isinstance(given.get(name), dict) and isinstance(value, dict) else value


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _arguments(group: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a class, where the group names one by its `class_path`; else the settings of the group."""
    if "class_path" not in group:
        return group
    group["init_args"] = group.get("init_args") or {}
    return group["init_args"]
