"""Images whose neighbours agree on another class."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vicinal.report.page.cells import Cells, row, rows
from vicinal.report.page.markup import Markup, Section, section
from vicinal.report.page.search import Neighborhood

VOTES, FEWEST_VOTES = 5, 3  # neighbours that must agree that a label is wrong
MOST_ERRORS = 12

Integers = npt.NDArray[np.int64]


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


def label_errors_section(cells: Cells, found: Neighborhood) -> Section:
    """The surest, each with the neighbours that speak against it."""
    errors = label_errors(found, cells.table.labels)
    shown = errors[:MOST_ERRORS]
    lead = (
        f"Queries whose {VOTES} nearest images are all of one other class (or as many as it has, "
        f"but at least {FEWEST_VOTES}): look whether the label is right. "
    )
    lead += f"There are {len(errors):,}" if errors else "There are none"
    lead += f"; the {len(shown)} with the most similar neighbours are shown." if len(shown) < len(errors) else "."
    entries = rows((_error(each, cells, found) for each in shown), side_by_side=True) if shown else None
    return section("label-errors", "Probable label errors", lead, entries)


def _error(error: LabelError, cells: Cells, found: Neighborhood) -> Markup:
    place = int(np.flatnonzero(found.queries == error.row)[0])
    text = f"Labelled {cells.names[error.row]}; its neighbours say {cells.names[error.votes[0]]}"
    return row(text, cells.ranking(found, place, shown=len(error.votes)))
