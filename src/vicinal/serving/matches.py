"""Searching for queries of requests, many at once where they ask for the same, and the answers with their columns."""

from __future__ import annotations

import ast
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from vicinal import retrieval
from vicinal.data.condition_syntax import QUOTED
from vicinal.data.moved import shown_path
from vicinal.data.table import Table
from vicinal.retrieval.calibration import Calibration
from vicinal.retrieval.decisions import match_images
from vicinal.retrieval.index.interface import ImageIndex
from vicinal.retrieval.reranking import RERANKINGS
from vicinal.retrieval.search import SearchResult, search_images
from vicinal.serving.bodies import SearchBody
from vicinal.serving.limits import Limits
from vicinal.serving.problems import Problem
from vicinal.utils.arrays import Floats
from vicinal.utils.errors import InputError

Query = tuple[Floats, SearchBody, Any]
"""A vector, float32 [dim]; the request that it came with, see :meth:`SearchBody.options`; and the codes of its local
features, uint8 [patches, dim], or None."""


NOT_COLUMNS = ("id", "label", "score", "matching_patches")


def shown_columns(record: dict[str, Any], root: str | None) -> dict[str, Any]:
    """The columns of an item, ready for JSON, without its id, label and score.

    Example:
        >>> shown_columns({"id": 3, "label": "cup", "path": "/photos/1.jpg", "weight": math.inf}, "/photos")
        {'path': '1.jpg', 'weight': 'inf'}
    """
    columns = {name: _finite(value) for name, value in record.items() if name not in NOT_COLUMNS}
    if "path" in columns:
        columns["path"] = shown_path(columns["path"], root)
    return columns


def _finite(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def search_batch(
    index: ImageIndex, queries: Sequence[Query], refiner: Any = None, max_candidates: int | None = None
) -> list[dict[str, Any] | InputError]:
    """The answers of `POST /search`, or errors, of many queries: those with the same options are searched at once."""
    groups: dict[SearchBody, list[int]] = defaultdict(list)
    for row, (_, options, _) in enumerate(queries):
        groups[options].append(row)
    answers: dict[int, dict[str, Any] | InputError] = {}
    for options, rows in groups.items():
        try:
            vectors, _, codes = zip(*(queries[row] for row in rows), strict=True)
            found = _search(index, np.stack(vectors), options, codes, refiner, max_candidates)
        except InputError as error:
            answers |= dict.fromkeys(rows, error)
        else:
            answers |= dict(zip(rows, found, strict=True))
    return [answers[row] for row in range(len(queries))]


def _search(
    index: Any, vectors: Floats, options: SearchBody, codes: Sequence[Any], refiner: Any, max_candidates: int | None
) -> list[dict[str, Any]]:
    if options.exclude_id is not None:
        index = index.without(options.exclude_id)
    reranking = None if options.rerank is None else _reranking(options.rerank, index, codes)
    calibration = index.match_calibration if reranking is None else None
    is_decided = calibration is not None or options.min_score is not None or options.min_probability is not None
    k = index.count(index.select(options.filter), at_most=options.k)
    if not k:
        decided = {"is_match": False, "label": None} if is_decided else {"is_match": None}
        return [{"matches": [], **decided, "count": 0} for _ in vectors]
    arguments: dict[str, Any] = {
        "refiner": refiner, "where": options.filter, "group_by": options.group_by, "reranking": reranking,
        "max_candidates": max_candidates,
    }  # fmt: skip
    find: Callable[..., Sequence[SearchResult]] = search_images
    if is_decided:
        find = partial(match_images, min_score=options.min_score, min_probability=options.min_probability)
    found = find(index, vectors, Table(pd.DataFrame(index=range(len(vectors)))), k, **arguments)
    answers = [_search_response(each, index, calibration) for each in found]
    if reranking is not None and options.rerank == "local":
        for row, matches in enumerate(answer["matches"] for answer in answers):
            patches = reranking.matches(row, [int(match["id"]) for match in matches]) if matches else []
            for match, each in zip(matches, patches, strict=True):
                match["patches"] = each.to_list()
    return answers


def _reranking(name: str, index: Any, codes: Sequence[Any]) -> Any:
    """The re-ranking of this name, for queries with these codes of local features."""
    if name != "local":
        return getattr(retrieval, RERANKINGS[name])()
    from vicinal.serving.local_queries import local_reranking

    return local_reranking(index, codes)


def _search_response(result: SearchResult, index: ImageIndex, calibration: Calibration | None) -> dict[str, Any]:
    decision = result.decision
    probabilities: list[float | None] = [None] * len(result.matches)
    if calibration is not None and calibration.score == "similarity":
        probabilities = calibration.probability([match["score"] for match in result.matches]).tolist()
    elif decision is not None and probabilities:
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
    """Raise a Problem if a condition is longer than it may be, or has more comparisons and listed values."""
    if condition is None:
        return
    if len(condition) > limits.max_filter:
        raise Problem(422, f"filter: it has {len(condition):,} characters; at most {limits.max_filter:,} are allowed")
    try:
        text = QUOTED.sub(lambda found: found[0] if found[1] is None else "name", condition.strip())
        number = sum(map(_count_terms, ast.walk(ast.parse(text, mode="eval"))))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # the parser of conditions explains the error
    if number > limits.max_filter_terms:
        raise Problem(
            422, f"filter: it has {number} comparisons and listed values; at most {limits.max_filter_terms} are allowed"
        )


def _count_terms(node: ast.AST) -> int:
    if isinstance(node, ast.Compare):
        return len(node.ops)
    return len(node.elts) if isinstance(node, (ast.List, ast.Tuple, ast.Set)) else 0
