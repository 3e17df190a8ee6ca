"""How much a condition of a client may ask for."""

from __future__ import annotations

import ast

from vicinal.data.condition_syntax import QUOTED
from vicinal.serving.limits import Limits
from vicinal.serving.problems import Problem


def check_condition(condition: str | None, limits: Limits) -> None:
    """Raise a Problem if a condition is longer than it may be, or has more comparisons and listed values.

    Example:
        >>> check_condition("price < 20 and size in ['S', 'M']", Limits(max_filter_terms=4))
        >>> check_condition("price < 20 and size in ['S', 'M']", Limits(max_filter_terms=3))
        Traceback (most recent call last):
            ...
        vicinal.serving.problems.Problem: filter: it has 4 comparisons and listed values; at most 3 are allowed
    """
    if condition is None:
        return
    if len(condition) > limits.max_filter:
        raise Problem(422, f"filter: it has {len(condition):,} characters; at most {limits.max_filter:,} are allowed")
    try:
        tree = ast.parse(
            QUOTED.sub(lambda found: found[0] if found[1] is None else "name", condition.strip()), mode="eval"
        )
        number = sum(map(_terms, ast.walk(tree)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # the reader of conditions says what is wrong
    if number > limits.max_filter_terms:
        raise Problem(
            422,
            f"filter: it has {number} comparisons and listed values; at most {limits.max_filter_terms} are allowed",
        )


def _terms(node: ast.AST) -> int:
    if isinstance(node, ast.Compare):
        return len(node.ops)
    return len(node.elts) if isinstance(node, (ast.List, ast.Tuple, ast.Set)) else 0
