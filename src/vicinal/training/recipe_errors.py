"""What is wrong with a recipe, in one line that names file, line and key."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import jsonargparse
import yaml

from vicinal.errors import InputError


def key_lines(path: Path) -> dict[str, int]:
    """The line, from 1, of every dotted key of a YAML file."""
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read the recipe {path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise InputError(f"{where}: not YAML: {getattr(error, 'problem', None) or 'not text in UTF-8'}") from None
    if not isinstance(root, yaml.MappingNode):
        raise InputError(f"{path}:1: a recipe is a mapping such as `epochs: 30`")
    lines: dict[str, int] = {}
    try:
        _collect_lines(root, "", lines, path)
    except RecursionError:
        raise InputError(f"{path}: a value contains itself") from None
    return lines


GROUPS = (
    "data", "data.noise", "transform", "model", "optimizer", "optimizer.factors", "schedule", "validation", "loss",
    "refiner", "neighborhood",
)  # fmt: skip


def _check_group(name: str, value: yaml.Node, line: int, path: Path) -> None:
    named = name == "loss" and value.value not in ("", "null")  # a loss can be given by its name alone
    if name in GROUPS and not isinstance(value, yaml.MappingNode) and not named:
        raise InputError(f"{path}:{line}: {name} is a group; write its settings below it")


def _collect_lines(node: yaml.MappingNode, prefix: str, lines: dict[str, int], path: Path) -> None:
    seen: set[str] = set()
    for key, value in node.value:
        if key.value in seen:
            raise InputError(f"{path}:{key.start_mark.line + 1}: {key.value} stands here twice; keep one")
        seen.add(key.value)
        # A class's arguments are written below init_args and spoken of without it.
        name = prefix if key.value == "init_args" else f"{prefix}.{key.value}".lstrip(".")
        lines.setdefault(name, key.start_mark.line + 1)
        _check_group(name, value, key.start_mark.line + 1, path)
        if isinstance(value, yaml.MappingNode):
            _collect_lines(value, name, lines, path)


def explain(
    message: str, parser: jsonargparse.ArgumentParser, path: str | Path | None, lines: dict[str, int], verb: str
) -> str:
    """One line that names file, line, key and what would be right, from what the parser or a check says."""
    text = " ".join(message.split())
    unknown = re.search(r"(?:[Gg]roup '(?P<group>[\w.]+)' does not accept )?[Oo]ption '(?P<key>[\w.]+)'", text)
    argument = re.search(r"unrecognized arguments: --(?P<key>[\w.]+)", text)
    found = unknown or argument
    if found:
        parents = [re.sub(r"Parser key \"|\"", "", p) for p in re.findall(r"Parser key \"[\w.]+\"", text)]
        parent = found.groupdict().get("group") or (parents[-1] if parents else "")
        key = f"{parent}.{found['key']}".lstrip(".")
        return f"{_place(key, path, lines)}unknown key {key}{_nearest(key, parser, verb)}"
    stray = re.search(r"unrecognized arguments: (.*)", text)
    if stray:
        return f"unknown argument {stray[1]}; a recipe comes first, then settings such as --epochs 3"
    wrong = re.match(r"Parser key \"(?P<key>[\w.]+)\": (?P<rest>.*)", text)
    if wrong:
        rest = re.sub(r"<class '([\w.]+)'>", r"\1", wrong["rest"])
        return f"{_place(wrong['key'], path, lines)}{wrong['key']}: {rest}"
    impossible = re.match(r"(?P<key>[\w.]+)(:| =| is) ", text)
    return (_place(impossible["key"], path, lines) if impossible else "") + text


def _place(key: str, path: str | Path | None, lines: dict[str, int]) -> str:
    for name in (key, f"model.{key}", f"refiner.{key}"):
        if name in lines:
            return f"{path}:{lines[name]}: "
    return ""


def _nearest(key: str, parser: jsonargparse.ArgumentParser, verb: str) -> str:
    known = [action.dest for action in parser._actions if action.dest not in ("help", "recipe", "print_config")]
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else f"; `vicinal {verb} --help` lists all keys"
