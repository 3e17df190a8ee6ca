"""What to look at first in what was found: weak classes, confusions, hubs, duplicates, probable label errors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from vicinal.evaluation.protocol import Evaluation
from vicinal.report.page.search import Neighborhood

DUPLICATE = 0.999  # similarity above which two images count as one
VOTES, FEWEST_VOTES = 5, 3  # neighbours that must agree that a label is wrong

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class ClassScore(NamedTuple):
    """How well one class is found: its code, its queries that count, and the means of two metrics over them."""

    label: int
    queries: int
    recall: float
    score: float


class Confusion(NamedTuple):
    """A class and the one that is found in its stead.

    Attributes:
        label: code of the queries' class.
        found: code of the class of their nearest images.
        queries: of which this is so.
        share: of the class's queries, from 0 to 1.
        query: a table row, the one whose wrong neighbour is the most similar.
        neighbor: that neighbour's row.
    """

    label: int
    found: int
    queries: int
    share: float
    query: int
    neighbor: int


class Hub(NamedTuple):
    """A gallery image in many lists of neighbours: its row, how many lists, and the share of them of its own class."""

    row: int
    lists: int
    right: float


class Hubs(NamedTuple):
    """The images in most lists.

    Attributes:
        top: most first.
        expected: lists an image is in on average.
        skewness: of the number of lists, over the gallery; 0 where all are found alike.
        never: gallery images that are in no list.
    """

    top: list[Hub]
    expected: float
    skewness: float
    never: int


class Pair(NamedTuple):
    """Two table rows and their similarity."""

    first: int
    second: int
    score: float


class LabelError(NamedTuple):
    """A query that its neighbours say is of another class.

    Attributes:
        row: of the table.
        votes: the rows of the neighbours that agree, nearest first.
        score: their mean similarity.
    """

    row: int
    votes: list[int]
    score: float


def score_name(evaluation: Evaluation) -> str:
    """The metric by which single queries are ordered: mAP@R, or the best there is."""
    return next((name for name in ("mAP@R", "mAP") if name in evaluation.per_query), next(iter(evaluation.per_query)))


def recall_name(evaluation: Evaluation) -> str:
    """The recall with the smallest k, or the metric of :func:`score_name` where there is none."""
    ks = [int(name[7:]) for name in evaluation.per_query if name.startswith("recall@") and name[7:].isdigit()]
    return f"recall@{min(ks)}" if ks else score_name(evaluation)


def class_scores(labels: Integers, evaluation: Evaluation) -> list[ClassScore]:
    """Every class that has a query that counts, the weakest first.

    Args:
        labels: int64 [rows], codes of the table's classes.
        evaluation: whose queries are rows of it.

    Example:
        >>> from vicinal.evaluation import evaluate_arrays
        >>> found = evaluate_arrays(np.eye(2)[[0, 1, 1]], [0, 0, 1], np.eye(2), [0, 1], recall_at=[1])
        >>> [(each.label, each.recall) for each in class_scores(np.array([0, 0, 1]), found)]
        [(0, 0.5), (1, 1.0)]
    """
    frame = pd.DataFrame(
        {
            "label": labels[evaluation.query_rows],
            "recall": evaluation.per_query[recall_name(evaluation)],
            "score": evaluation.per_query[score_name(evaluation)],
        }
    ).dropna()
    grouped = frame.groupby("label").agg(queries=("recall", "size"), recall=("recall", "mean"), score=("score", "mean"))
    ordered = grouped.sort_values(["recall", "score", "queries"], ascending=[True, True, False], kind="stable")
    columns = (ordered.index, ordered["queries"], ordered["recall"], ordered["score"])
    return [ClassScore(*values) for values in zip(*(column.tolist() for column in columns), strict=True)]


def confusions(found: Neighborhood, labels: Integers, most: int) -> tuple[list[Confusion], int]:
    """Pairs of classes by how many queries of the one have an image of the other nearest, and how many pairs there are.

    Example:
        >>> rows = np.arange(3)
        >>> three = Neighborhood(rows, rows, rows, np.array([[1], [0], [0]]),
        ...                      np.array([[0.5], [0.9], [0.8]], np.float32), np.array([[True], [True], [False]]))
        >>> confusions(three, np.array([0, 0, 1]), most=5)[0][0][:4]
        (1, 0, 1, 1.0)
    """
    wrong = np.flatnonzero(~found.right[:, 0])
    frame = pd.DataFrame(
        {
            "label": labels[found.queries[wrong]],
            "found": labels[found.found[wrong, 0]],
            "score": found.scores[wrong, 0],
            "place": wrong,
        }
    ).sort_values("score", ascending=False, kind="stable")
    pairs = frame.groupby(["label", "found"], sort=True).agg(count=("place", "size"), place=("place", "first"))
    of_class = np.bincount(labels[found.queries], minlength=int(labels.max(initial=0)) + 1)
    top = pairs.sort_values("count", ascending=False, kind="stable").head(most).reset_index()
    return [
        Confusion(label, other, count, count / int(of_class[label]), int(found.queries[at]), int(found.found[at, 0]))
        for label, other, count, at in top.to_numpy(dtype=np.int64).tolist()
    ], len(pairs)


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


def hubs(found: Neighborhood, most: int) -> Hubs:
    """The gallery images in most of the queries' lists of neighbours.

    Reference: Radovanović et al., "Hubs in Space", JMLR 2010: skewness of the k-occurrence.

    Example:
        >>> rows = np.arange(3)
        >>> three = Neighborhood(rows, rows, rows, np.array([[1], [0], [0]]), np.ones((3, 1), np.float32),
        ...                      np.array([[True], [True], [False]]))
        >>> hubs(three, most=1).top
        [Hub(row=0, lists=2, right=0.5)]
    """
    size = int(max(found.gallery.max(initial=0), found.found.max(initial=0))) + 1
    lists = np.bincount(found.found.ravel(), minlength=size)
    right = np.bincount(found.found.ravel(), weights=found.right.ravel(), minlength=size)
    counts = lists[found.gallery]
    order = found.gallery[np.argsort(-counts, kind="stable")][:most]
    top = [Hub(int(row), int(lists[row]), float(right[row] / lists[row])) for row in order if lists[row] > 1]
    return Hubs(top, float(counts.mean()), _skewness(counts), int((counts == 0).sum()))


def duplicates(found: Neighborhood, threshold: float = DUPLICATE) -> list[Pair]:
    """Pairs of a query and a neighbour more similar than the threshold, each once, most similar first.

    Example:
        >>> rows = np.arange(2)
        >>> scores, right = np.ones((2, 1), np.float32), np.ones((2, 1), bool)
        >>> two = Neighborhood(rows, rows, rows, np.array([[1], [0]]), scores, right)
        >>> duplicates(two)
        [Pair(first=0, second=1, score=1.0)]
    """
    queries, places = np.nonzero(found.scores > threshold)
    ends = np.sort(np.stack([found.queries[queries], found.found[queries, places]], axis=1), axis=1)
    frame = pd.DataFrame({"first": ends[:, 0], "second": ends[:, 1], "score": found.scores[queries, places]})
    frame = frame.drop_duplicates(["first", "second"]).sort_values(
        ["score", "first", "second"], ascending=[False, True, True]
    )
    return [Pair(*values) for values in zip(*(frame[name].tolist() for name in frame.columns), strict=True)]


def label_errors(found: Neighborhood, labels: Integers) -> list[LabelError]:
    """Queries whose nearest neighbours are all of one other class, the surest first.

    The five nearest must agree; of a class with fewer images in the gallery all of them, and at least three.

    Example:
        >>> rows = np.arange(4)
        >>> lists = np.array([[1, 2, 3], [2, 3, 0], [1, 3, 0], [1, 2, 0]])
        >>> labels = np.array([1, 0, 0, 0])
        >>> right = labels[lists] == labels[rows, None]
        >>> four = Neighborhood(rows, rows, rows, lists, np.full((4, 3), 0.5, np.float32), right)
        >>> label_errors(four, labels)
        [LabelError(row=0, votes=[1, 2, 3], score=0.5)]
    """
    if found.k < FEWEST_VOTES:
        return []
    named = labels[found.found]
    accusing = named[:, 0]
    votes = np.minimum(
        np.bincount(labels[found.gallery], minlength=int(labels.max()) + 1)[accusing], min(VOTES, found.k)
    )
    agree = (named == accusing[:, None]).cumprod(axis=1).sum(axis=1)
    places = np.flatnonzero(~found.right[:, 0] & (votes >= FEWEST_VOTES) & (agree >= votes))
    errors = [
        LabelError(
            int(found.queries[at]), found.found[at, : votes[at]].tolist(), float(found.scores[at, : votes[at]].mean())
        )
        for at in places
    ]
    return sorted(errors, key=lambda error: -error.score)


def _skewness(counts: Integers) -> float:
    spread = counts.std()
    return float((((counts - counts.mean()) / spread) ** 3).mean()) if spread else 0.0
