"""The worst queries, the best, and some drawn by chance, with their neighbours."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pandas as pd

from vicinal.evaluation.protocol import Evaluation
from vicinal.report.page.cells import KEY, Cells, row, rows
from vicinal.report.page.markup import Markup, Section, element, note, percent, section
from vicinal.report.page.scores import score_name
from vicinal.report.page.search import Neighborhood

WORST, BEST, CHANCE = 12, 6, 6

Integers = npt.NDArray[np.int64]


def chosen_queries(
    found: Neighborhood, evaluation: Evaluation, labels: Integers, most: int
) -> tuple[Integers, Integers]:
    """Places in `found` of the best and of the worst queries; of each class one, as long as there are classes.

    The worst are those of the lowest score and, of equal ones, the most similar first wrong neighbour: surely wrong.
    The best are those of the highest score and, of equal ones, the least similar first neighbour: found though hard.

    Example:
        >>> from vicinal.evaluation import evaluate
        >>> from vicinal.data import Table
        >>> from vicinal.report.page.search import neighborhood
        >>> vectors = np.array([[1.0, 0.0], [0.9, 0.1], [0.8, 0.2], [0.1, 0.9]])
        >>> table = Table(pd.DataFrame({"label": [0, 0, 1, 1]}))
        >>> result = evaluate(vectors, table, recall_at=[1])
        >>> best, worst = chosen_queries(neighborhood(vectors, table, result), result, table.labels, most=1)
        >>> best.tolist(), worst.tolist()
        ([3], [2])
    """
    scores = evaluation.per_query[score_name(evaluation)][found.positions]
    counted = np.flatnonzero(~np.isnan(scores))
    first = found.scores[counted, 0].astype(np.float64)
    best = counted[np.lexsort((first, -scores[counted]))]
    worst = counted[np.lexsort((-first, scores[counted]))]
    of = labels[found.queries]
    return one_a_class(best, of, most), one_a_class(worst, of, most)


def one_a_class(places: Integers, labels: Integers, most: int) -> Integers:
    """The first of every class, in order, then the second of every class, ..., until there are enough.

    Example:
        >>> one_a_class(np.array([0, 1, 2]), np.array([5, 5, 6]), most=2)
        array([0, 2])
    """
    turns = pd.Series(labels[places]).groupby(labels[places]).cumcount().to_numpy()
    return places[np.argsort(turns, kind="stable")][:most]


def queries_section(cells: Cells, found: Neighborhood, evaluation: Evaluation, seed: int) -> Section:
    """Three lists of queries, of each class one as long as there are classes."""
    labels, name = cells.table.labels, score_name(evaluation)
    best, worst = chosen_queries(found, evaluation, labels, WORST)
    mixed = np.random.default_rng(seed).permutation(len(found.queries))
    lists = {
        f"Worst by {name}": worst,
        f"Best by {name}": best[:BEST],
        "Drawn by chance": one_a_class(mixed, labels[found.queries], CHANCE),
    }
    parts = [_list(title, places, cells, found, evaluation) for title, places in lists.items()]
    lead = (
        "What single queries find: each with its nearest images by cosine similarity, nearest first, "
        "and of each class one query as long as there are classes."
    )
    return section("queries", "Queries and their neighbours", lead, note(KEY), *parts)


def _list(title: str, places: Iterable[np.int64], cells: Cells, found: Neighborhood, evaluation: Evaluation) -> Markup:
    entries = [_query(cells, found, evaluation, int(place)) for place in places]
    return Markup(element("h3", title) + rows(entries))


def _query(cells: Cells, found: Neighborhood, evaluation: Evaluation, place: int) -> Markup:
    name, position = score_name(evaluation), int(found.positions[place])
    parts = [cells.names[found.queries[place]], f"{name} {percent(float(evaluation.per_query[name][position]))}"]
    rank = int(evaluation.first_ranks[position]) if len(evaluation.first_ranks) else 0
    if rank:
        parts.append(f"first right image at rank {rank:,}")
    return row(" · ".join(parts), cells.ranking(found, place))
