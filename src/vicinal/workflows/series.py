"""Whether photos of one series find each other, which makes scores too high where images have no groups."""

from __future__ import annotations

import re

import numpy as np

from vicinal.evaluation.protocol import own_gallery_rows, query_gallery_rows
from vicinal.retrieval.exclusions import Exclusions
from vicinal.retrieval.neighbors import nearest
from vicinal.retrieval.scores import UnitVectors
from vicinal.utils.arrays import Integers
from vicinal.utils.console import log
from vicinal.workflows.embedded_table import EmbeddedTable

MAX_QUERIES = 500
MIN_QUERIES = 20
MOST, TIMES_CHANCE = 0.5, 2.0
"""Minimum fraction of correct first matches beside the query for a warning, and its minimum ratio to chance."""


def warn_of_series(name: str, embedded: EmbeddedTable) -> None:
    """Log that most first matches are the file beside the query's, and what to do; only without groups."""
    fraction, chance = series_fraction(embedded) or (0.0, 0.0)
    if fraction >= MOST and fraction >= TIMES_CHANCE * chance:
        log(
            f"warning: {name}: {100 * fraction:.0f} % of the right first matches are the file beside the query's "
            f"({100 * chance:.0f} % by chance), as photos of one series are, so scores and thresholds are too "
            "optimistic for other photos; mark series by a column group, --group_pattern, such as '(.*)_[0-9]+', or "
            "--group_minutes between photos"
        )


def series_fraction(embedded: EmbeddedTable) -> tuple[float, float] | None:
    """Among queries whose first match is of their class, the fraction whose match is the file before or after theirs.

    The files of a class are ordered by the numbers in their names. Returns the fraction and its value by chance; None
    with groups, without labels or paths, or with few queries.
    """
    table = embedded.table
    if table.has("group") or not (table.has("label") and table.has("path")):
        return None
    queries, gallery = query_gallery_rows(table)
    own = own_gallery_rows(table, queries, gallery)
    chosen = np.sort(np.random.default_rng(0).permutation(len(queries))[:MAX_QUERIES])
    if len(gallery) < 2:
        return None
    vectors = UnitVectors(embedded.vectors, "embedding", queries[chosen])
    others = UnitVectors(embedded.vectors, "embedding", gallery)
    ids = nearest(vectors, others, 1, Exclusions(len(chosen), len(gallery), own[chosen])).ids[:, 0]
    matches, rows = gallery[ids], queries[chosen]
    is_right = table.labels[matches] == table.labels[rows]
    if is_right.sum() < MIN_QUERIES:
        return None
    places, sizes = _places(table.paths, table.labels)
    beside = np.abs(places[matches] - places[rows])[is_right] == 1
    chance = np.minimum(2 / np.maximum(sizes[table.labels[rows]][is_right] - 1, 1), 1)
    return float(beside.mean()), float(chance.mean())


def _places(paths: list[str], labels: Integers) -> tuple[Integers, Integers]:
    """The place of each image among those of its class, by the numbers in its name, and the sizes of the classes."""
    keys = [[int(part) if part.isdigit() else part for part in re.split(r"([0-9]+)", path)] for path in paths]
    order = sorted(range(len(paths)), key=lambda row: (labels[row], keys[row]))
    sizes = np.bincount(labels)
    places = np.empty(len(paths), np.int64)
    places[order] = np.arange(len(paths)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return places, sizes
