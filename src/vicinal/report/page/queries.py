"""The worst queries, the best, and some drawn at random, with their neighbors."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from vicinal.analysis import QueryNeighbors, queries_by_score
from vicinal.analysis.sampling import round_robin
from vicinal.analysis.scores import query_metric
from vicinal.evaluation.result import Evaluation
from vicinal.report.page.frames import KEY, ImageFrames, entry, entry_list
from vicinal.report.page.markup import Markup, Section, element, joined, note, percent, section

NUM_WORST, NUM_BEST, NUM_RANDOM = 12, 6, 6


def queries_section(frames: ImageFrames, neighbors: QueryNeighbors, evaluation: Evaluation, seed: int) -> Section:
    """Three lists of queries, one query per class as long as there are classes."""
    labels, metric = frames.table.labels, query_metric(evaluation)
    worst, best = (
        queries_by_score(neighbors, evaluation, ascending=ascending)["row"].to_numpy() for ascending in (True, False)
    )
    shuffled = np.random.default_rng(seed).permutation(neighbors.with_positives().queries)
    lists = {
        f"Worst by {metric}": round_robin(worst, labels)[:NUM_WORST],
        f"Best by {metric}": round_robin(best, labels)[:NUM_BEST],
        "Drawn at random": round_robin(shuffled, labels)[:NUM_RANDOM],
    }
    lead = (
        "What single queries find: each with its nearest images by cosine similarity, nearest first, "
        "and of each class one query as long as there are classes."
    )
    parts = [_list(title, rows.tolist(), frames, neighbors, evaluation) for title, rows in lists.items()]
    return section("queries", "Queries and their neighbors", lead, note(KEY), *parts)


def _list(
    title: str, rows: Iterable[int], frames: ImageFrames, neighbors: QueryNeighbors, evaluation: Evaluation
) -> Markup:
    entries = [entry(_text(frames.labels[row], row, evaluation), frames.ranking(neighbors, row)) for row in rows]
    return joined([element("h3", title), entry_list(entries)])


def _text(label: str, row: int, evaluation: Evaluation) -> str:
    metric, query = query_metric(evaluation), int(np.searchsorted(evaluation.query_indices, row))
    text = f"{label} · {metric} {percent(float(evaluation.per_query[metric][query]))}"
    rank = int(evaluation.first_positive_ranks[query]) if len(evaluation.first_positive_ranks) else 0
    return f"{text} · first match at rank {rank:,}" if rank else text
