"""YAML of plain values, also of untrusted files: nothing is created or imported, and expanded aliases are bounded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import yaml

from vicinal.utils.errors import one_line

MAX_DEPTH, MAX_VALUES = 32, 100_000
"""Limits of one text: levels of nesting, and values after aliases are expanded."""

PLAIN_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq", "merge")}


class ValueProblem(yaml.constructor.ConstructorError):
    """YAML whose values are not plain."""


class LimitProblem(ValueProblem):
    """YAML that exceeds a limit, or has a value that contains itself."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The safe loader with the decimal numbers of YAML 1.2, such as 1e-4; all others, and dates, stay text.

    YAML 1.1 reads 010 as 8 and 1:30 as 90.
    """

    yaml_implicit_resolvers: ClassVar = {
        first: [
            (tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] not in ("timestamp", "float", "int")
        ]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node.tag not in PLAIN_TAGS:
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            raise ValueProblem(None, None, f"the tag {tag} is not a plain value", node.start_mark)
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError):  # such as a number of 5,000 digits, or `!!bool 3`
            text = f"{one_line(node.value, 40)} is not a plain value"
            raise ValueProblem(None, None, text, node.start_mark) from None


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+"
               r"|\.(?:inf|Inf|INF))$|^\.(?:nan|NaN|NAN)$"),
    list("-+0123456789."),
)  # fmt: skip
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][0-9_]*)$"), list("-+0123456789"))


class _Dumper(yaml.SafeDumper):
    """The safe dumper; it writes no aliases, and quotes text that the loader would read as a number."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _first, _resolvers in _Loader.yaml_implicit_resolvers.items():
    for _tag, _pattern in _resolvers:
        _Dumper.add_implicit_resolver(_tag, _pattern, [_first])


def dump_yaml(values: Mapping[str, Any]) -> str:
    """Plain values as YAML, in their order."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def compose_yaml(text: str) -> yaml.Node | None:
    """The nodes of a text, each with its line; a :class:`LimitProblem` if it is too large or contains itself."""
    _check_depth(text)
    node: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    if node is not None:
        _check_expanded(node, {})
    return node


def load_yaml(text: str) -> Any:
    """The plain values of a text; raises :class:`ValueProblem` if a value is not plain.

    Example:
        >>> load_yaml("{lr: 1e-4, sizes: [1, 2]}")
        {'lr': 0.0001, 'sizes': [1, 2]}
    """
    node = compose_yaml(text)
    return None if node is None else construct_yaml(node)


def construct_yaml(node: yaml.Node) -> Any:
    """The plain values of composed nodes."""
    return _Loader("").construct_document(node)


def problem_of(error: yaml.YAMLError) -> str:
    """The message of an error, in one line without its position."""
    text = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    return one_line(text if isinstance(error, ValueProblem) else f"not YAML: {text}", 200)


def _check_depth(text: str) -> None:
    """Raise YAMLError for deep nesting, before any function calls itself once per level."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise _limit(f"more than {MAX_DEPTH} levels", event)


def _check_expanded(node: yaml.Node, sizes: dict[int, int | None]) -> int:
    """The number of values below a node, where each alias counts as the values it stands for."""
    if id(node) in sizes:
        size = sizes[id(node)]
        if size is None:
            raise _limit("a value contains itself", node)
        return size
    sizes[id(node)] = None
    size = 1 + sum(_check_expanded(each, sizes) for each in _inner_nodes(node))
    if size > MAX_VALUES:
        raise _limit(f"more than {MAX_VALUES:,} values", node)
    sizes[id(node)] = size
    return size


def _inner_nodes(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        for pair in node.value:
            yield from pair
    elif isinstance(node, yaml.SequenceNode):
        yield from node.value


def _limit(text: str, where: Any) -> LimitProblem:
    return LimitProblem(None, None, text, where.start_mark)
