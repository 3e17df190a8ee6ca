"""The worst queries, the best, and some drawn at random, with their neighbors."""

from __future__ import annotations

import numpy as np

from vicinal.analysis import QueryNeighbors, queries_by_score
from vicinal.analysis.scores import query_metric
from vicinal.data.class_samples import round_robin
from vicinal.evaluation.result import Evaluation
from vicinal.report.page.frames import ImageFrames, entry, entry_list, key
from vicinal.report.page.markup import Markup, Section, element, fold, percent, section
from vicinal.utils.arrays import Integers

NUM_WORST, NUM_BEST, NUM_RANDOM = 12, 6, 6


def queries_section(frames: ImageFrames, neighbors: QueryNeighbors, evaluation: Evaluation, seed: int) -> Section:
    """The worst queries, and folded the best and some others; one query per class as long as there are classes."""
    labels, metric = frames.table.labels, query_metric(evaluation)
    worst, best = (
        queries_by_score(neighbors, evaluation, ascending=ascending)["row"].to_numpy() for ascending in (True, False)
    )
    shuffled = np.random.default_rng(seed).permutation(neighbors.with_positives().queries)
    lead = "What single queries find, nearest first; of each class one query, then another."

    def found(rows: Integers, number: int) -> Markup:
        chosen = round_robin(rows, labels)[:number].tolist()
        return entry_list(
            entry(_text(frames.labels[row], row, evaluation), frames.ranking(neighbors, row)) for row in chosen
        )

    return section(
        "queries",
        "Queries and their neighbors",
        lead,
        key(),
        element("h3", f"Worst by {metric}"),
        found(worst, NUM_WORST),
        fold(f"Best by {metric}", found(best, NUM_BEST)),
        fold("Drawn at random", found(shuffled, NUM_RANDOM)),
    )


def _text(label: str, row: int, evaluation: Evaluation) -> str:
    metric, query = query_metric(evaluation), int(np.searchsorted(evaluation.query_indices, row))
    text = f"{label} · {metric} {percent(float(evaluation.per_query[metric][query]))}"
    rank = int(evaluation.first_positive_ranks[query]) if len(evaluation.first_positive_ranks) else 0
    return f"{text} · first match at rank {rank:,}" if rank else text
