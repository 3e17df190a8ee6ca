"""Searching for queries of requests, many at once where they ask for the same, and the answers with their columns."""

from __future__ import annotations

import ast
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from vicinal.data.condition_syntax import QUOTED
from vicinal.data.moved import shown_path
from vicinal.data.table import Table
from vicinal.retrieval.decisions import match_images
from vicinal.retrieval.index.interface import ImageIndex
from vicinal.retrieval.reranking import RERANKINGS
from vicinal.retrieval.search import SearchResult, search_images
from vicinal.serving.limits import Limits
from vicinal.serving.problems import Problem
from vicinal.utils.arrays import Floats
from vicinal.utils.errors import InputError


@dataclass(frozen=True)
class SearchOptions:
    """What a request asks of a search; queries with the same options are searched together.

    Attributes:
        k: number of matches.
        min_score: as for :func:`~vicinal.retrieval.match_images`.
        min_probability: the same.
        where: a condition on the columns.
        group_by: a column.
        rerank: the name of a re-ranking method.
        exclude_id: an item that is not found.
        max_candidates: as for :func:`~vicinal.retrieval.search_images`.
    """

    k: int = 10
    min_score: float | None = None
    min_probability: float | None = None
    where: str | None = None
    group_by: str | None = None
    rerank: str | None = None
    exclude_id: int | None = None
    max_candidates: int | None = None


@dataclass(frozen=True)
class Query:
    """A vector, float32 [dim], and what is asked of its search."""

    vector: Floats
    options: SearchOptions


def shown_columns(record: dict[str, Any], root: str | None) -> dict[str, Any]:
    """The columns of an item, ready for JSON, without its id, label and score.

    Example:
        >>> shown_columns({"id": 3, "label": "cup", "path": "/photos/1.jpg", "weight": math.inf}, "/photos")
        {'path': '1.jpg', 'weight': 'inf'}
    """
    columns = {name: _finite(value) for name, value in record.items() if name not in ("id", "label", "score")}
    if "path" in columns:
        columns["path"] = shown_path(columns["path"], root)
    return columns


def _finite(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def search_batch(index: ImageIndex, queries: Sequence[Query], refiner: Any = None) -> list[dict[str, Any] | InputError]:
    """Search for many queries: those with the same options at once.

    Returns:
        For each query the answer of `POST /search`, or what is wrong with it.
    """
    groups: dict[SearchOptions, list[int]] = defaultdict(list)
    for row, query in enumerate(queries):
        groups[query.options].append(row)
    answers: dict[int, dict[str, Any] | InputError] = {}
    for options, rows in groups.items():
        try:
            found = _search(index, np.stack([queries[row].vector for row in rows]), options, refiner)
        except InputError as error:
            answers |= dict.fromkeys(rows, error)
        else:
            answers |= dict(zip(rows, found, strict=True))
    return [answers[row] for row in range(len(queries))]


def _search(index: Any, vectors: Floats, options: SearchOptions, refiner: Any) -> list[dict[str, Any]]:
    if options.exclude_id is not None:
        index = index.without(options.exclude_id)
    reranking = _reranking(options.rerank)
    has_minimum = options.min_score is not None or options.min_probability is not None
    is_decided = has_minimum or (index.calibration is not None and reranking is None)
    num_found = index.count(index.select(options.where), at_most=options.k)
    if not num_found:
        decided_answer = {"is_match": False, "label": None} if is_decided else {"is_match": None}
        return [{"matches": [], **decided_answer, "count": 0} for _ in vectors]
    arguments: dict[str, Any] = {
        "refiner": refiner, "where": options.where, "group_by": options.group_by, "reranking": reranking,
        "max_candidates": options.max_candidates,
    }  # fmt: skip
    table, k = Table(pd.DataFrame(index=range(len(vectors)))), num_found
    results: Sequence[SearchResult]
    if not is_decided:
        results = search_images(index, vectors, table, k, **arguments)
        return [_answer(each, index) for each in results]
    arguments |= {"min_score": options.min_score, "min_probability": options.min_probability}
    decided = match_images(index, vectors, table, k, **arguments)
    calibration = index.calibration if reranking is None else None
    return [_answer(each, index, calibration, each.decision) for each in decided]


def _reranking(name: str | None) -> Any:
    if name is None:
        return None
    from vicinal import retrieval

    return getattr(retrieval, RERANKINGS[name])()


def _answer(result: SearchResult, index: ImageIndex, calibration: Any = None, decision: Any = None) -> dict[str, Any]:
    probabilities: list[float | None] = [None] * len(result.matches)
    if calibration is not None and calibration.score == "similarity":
        probabilities = calibration.probability([match["score"] for match in result.matches]).tolist()
    elif calibration is not None and result.matches:
        probabilities[0] = decision.probability  # of the margin between the best match and the next class
    matches = [
        {
            "id": str(match["id"]),
            "score": match["score"],
            "probability": probability,
            "label": match.get("label"),
            "columns": shown_columns(match, index.root),
        }
        for match, probability in zip(result.matches, probabilities, strict=True)
    ]
    decided = {"is_match": None} if decision is None else {"is_match": decision.is_match, "label": decision.label}
    return {"matches": matches, **decided, "count": len(matches)}


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
