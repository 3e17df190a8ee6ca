"""Match or none: whether the best match of a query is accepted, the probability that it is right, and its class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vicinal.data.table import Table
from vicinal.retrieval.calibration import LOWEST_SIMILARITY, Calibration
from vicinal.retrieval.index.interface import ImageIndex
from vicinal.retrieval.search import Decision, SearchResult, search_images
from vicinal.utils.arguments import is_number, shown
from vicinal.utils.arrays import Doubles, Floats
from vicinal.utils.errors import InputError


def match_images(
    index: ImageIndex,
    vectors: Floats,
    table: Table,
    k: int,
    exclude_self: bool = False,
    *,
    min_score: float | None = None,
    min_probability: float | None = None,
    **options: Any,
) -> list[SearchResult]:
    """Search an index for every row of a table, and decide for each whether there is a match.

    The threshold of the index's calibration decides whether the best match is accepted; it removes no match. Minima
    replace it, and remove the matches below them. Every accepted match votes for the class of the query; with a margin,
    all k vote if the best match is accepted.

    Args:
        index: the index to search, with its :attr:`~vicinal.Index.calibration`.
        vectors: float32 [q, d], the queries.
        table: one row per query.
        k: number of matches per query.
        exclude_self: as in :func:`~vicinal.retrieval.search_images`.
        min_score: the least score of a match, as it is shown; cosine similarity without re-ranking.
        min_probability: the least probability of a match, from 0 to 1.
        options: the other arguments of :func:`~vicinal.retrieval.search_images`.

    Raises:
        InputError: as :func:`~vicinal.retrieval.search_images`; there is neither a calibration nor a minimum; the
            calibration does not apply: matches are re-ranked, or it is about margins and the index has no labels;
            or a minimum is invalid.

    Example:
        >>> import pandas as pd
        >>> from vicinal.retrieval.calibration import example_calibration
        >>> from vicinal import Index
        >>> table = Table(pd.DataFrame({"label": ["cat", "dog"]}))
        >>> index = Index.build(np.eye(2), table)
        >>> index.calibration = example_calibration()
        >>> queries = np.array([[0.9, 0.1], [0.6, 0.6]], np.float32)
        >>> [str(each.decision) for each in match_images(index, queries, table, k=1)]
        ['match: cat, probability 1.00', 'match: cat, probability 1.00']
        >>> [each.decision.is_match for each in match_images(index, queries, table, k=1, min_score=0.9)]
        [True, False]
    """
    calibration = None if options.get("reranking") is not None else index.match_calibration
    if calibration is None and index.calibration is not None and options.get("reranking") is None and min_score is None:
        raise InputError(
            "the calibration of the index is about identities; use vicinal identify, or give min_score (--min_score)"
        )
    _check_minima(min_score, min_probability, calibration, is_reranked=options.get("reranking") is not None)
    results: Sequence[SearchResult] = search_images(index, vectors, table, k, exclude_self, **options)
    if calibration is None:
        return [_decide(each, _similarities(each), None, min_score, None) for each in results]
    if calibration.score == "similarity":
        return [_decide(each, _similarities(each), calibration, min_score, min_probability) for each in results]
    deeper = list(results)
    limit = index.count(at_most=options.get("max_candidates"))
    while (rows := [row for row, each in enumerate(deeper) if _runner_up(each) is None]) and k < limit:
        if not all("label" in match for row in rows for match in deeper[row].matches):
            raise InputError("the calibration is about margins between classes, and matches in the index have no label")
        k = min(4 * k, limit)
        found = search_images(index, vectors[rows], table.take(rows), k, exclude_self, **options)
        for row, result in zip(rows, found, strict=True):
            deeper[row] = result
    return [
        _decide(each, np.full(len(each.matches), _margin(deep)), calibration, min_score, min_probability)
        for each, deep in zip(results, deeper, strict=True)
    ]


def _check_minima(
    min_score: float | None, min_probability: float | None, calibration: Calibration | None, is_reranked: bool
) -> None:
    if min_score is not None and not (is_number(min_score) and np.isfinite(min_score)):
        raise InputError(f"min_score = {shown(min_score)} is invalid; use a number, such as 0.6")
    if min_probability is not None and not (is_number(min_probability) and 0 <= min_probability <= 1):
        raise InputError(f"min_probability = {shown(min_probability)} is invalid; use one from 0 to 1")
    if calibration is not None or (min_score is not None and min_probability is None):
        return
    if is_reranked:
        raise InputError("a calibration is for similarities, not the scores of a re-ranking; leave one of them out")
    raise InputError(
        "the index has no calibration of matches; make one: vicinal calibrate SOURCE --index INDEX, or give min_score "
        "(--min_score) alone"
    )


def _similarities(result: SearchResult) -> Doubles:
    return np.array([match["score"] for match in result.matches], np.float64)


def _runner_up(result: SearchResult) -> float | None:
    """The score of the best match of another class than the first; None without such a match."""
    labels = [match.get("label") for match in result.matches]
    return next((match["score"] for match in result.matches if match.get("label") != labels[0]), None)


def _margin(result: SearchResult) -> float:
    if not result.matches:
        return 0.0
    second = _runner_up(result)
    return float(result.matches[0]["score"] - (LOWEST_SIMILARITY if second is None else second))


def _decide(
    result: SearchResult,
    scores: Doubles,
    calibration: Calibration | None,
    min_score: float | None,
    min_probability: float | None,
) -> SearchResult:
    """Decide about a query by the scores of its matches, which are of the calibration's kind."""
    accepted = np.ones(len(scores), dtype=bool)
    if min_score is not None:
        accepted &= _similarities(result) >= min_score
    if min_probability is not None and calibration is not None:
        accepted &= calibration.probability(scores) >= min_probability
    has_minimum = min_score is not None or min_probability is not None
    if not has_minimum and calibration is not None:
        accepted = calibration.accepts(scores)
    votes = [match for match, is_accepted in zip(result.matches, accepted, strict=True) if is_accepted]
    best = float(scores[0]) if len(scores) else None
    probability = None if calibration is None or best is None else float(calibration.probability(best))
    labels = [match["label"] for match in votes if "label" in match]
    label = max(dict.fromkeys(labels), key=labels.count, default=None)  # in a tie that of the best match
    decision = Decision(bool(votes), label, best, probability)
    return replace(result, matches=votes if has_minimum else result.matches, decision=decision)
