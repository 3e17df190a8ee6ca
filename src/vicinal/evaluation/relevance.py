"""The positives of every query, and the gallery rows that are excluded from its ranking."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from vicinal.data.table import Table
from vicinal.utils.arrays import Booleans, Integers
from vicinal.utils.errors import InputError


class LabelPairs(NamedTuple):
    """Some queries, ordered by label, each with all gallery rows that have its label, which are its pairs."""

    queries: Integers  # [some]
    gallery: Integers  # [others], the gallery rows with their labels, label by label
    offsets: Integers  # [some], where the rows with the label of each query begin in `gallery`
    starts: Integers  # [some + 1], where the pairs of each query begin, numbered one query after the other


class ExcludedPairs(NamedTuple):
    """The exclusions from the rankings of queries: themselves, and positives of the same group."""

    exclude_self: Integers  # [q], the gallery row that is the query itself, -1 for none
    query_groups: Integers  # [q], -1 for no group
    gallery_groups: Integers  # [g]
    query_labels: Integers  # [q], the labels of positives that groups exclude; -1 for none
    gallery_labels: Integers  # [g]


class Relevance:
    """Which gallery rows are positives of a query, and which are excluded from its ranking.

    A positive has the label of the query. Excluded are the query itself and its same-group positives: gallery rows with
    the same label and the same group (camera, sequence), as in person and vehicle re-identification.

    Args:
        query_labels: int64 [q]; a query with a negative label has no positives.
        gallery_labels: int64 [g].
        exclude_self: int64 [q], the gallery row that is the query itself, -1 for none. None: -1 for all.
        query_groups: int64 [q], -1 for no group. None: there are no groups.
        gallery_groups: int64 [g], -1 for no group.
        exclusions: the relevance whose exclusions are used, in place of `exclude_self` and the groups. Coarse labels
            define other positives in the same rankings.

    Attributes:
        query_labels: int64 [q].
        gallery_labels: int64 [g].
        rows_by_label: int64 [g], the gallery rows ordered by label, ascending within each label.

    Example:
        >>> labels = np.array([0, 1, 0, 0])
        >>> relevance = Relevance(labels, labels, exclude_self=np.arange(4))
        >>> relevance.positives(0), relevance.excluded(0)
        (array([2, 3]), array([0]))
    """

    def __init__(
        self,
        query_labels: Integers,
        gallery_labels: Integers,
        exclude_self: Integers | None = None,
        query_groups: Integers | None = None,
        gallery_groups: Integers | None = None,
        exclusions: Relevance | None = None,
    ) -> None:
        none = np.full(len(query_labels), -1)
        self._exclusions = self if exclusions is None else exclusions
        self._exclude_self = none if exclude_self is None else exclude_self
        self._query_groups = none if query_groups is None else query_groups
        self._gallery_groups = np.full(len(gallery_labels), -1) if gallery_groups is None else gallery_groups
        self.query_labels, self.gallery_labels = query_labels, gallery_labels
        self.rows_by_label = np.argsort(gallery_labels, kind="stable")
        self._begin = np.searchsorted(gallery_labels[self.rows_by_label], query_labels, "left")
        self._end = np.searchsorted(gallery_labels[self.rows_by_label], query_labels, "right")
        self._end[query_labels < 0] = self._begin[query_labels < 0]
        self._counts = self._end - self._begin

    def positives(self, query: int) -> Integers:
        """The positives of one query, as ascending gallery rows."""
        matches = self._matches(query)
        return matches[~self.is_excluded(np.array(query), matches)]

    def excluded(self, query: int) -> Integers:
        """The gallery rows that are excluded from the ranking of one query, ascending."""
        rows = np.append(self._exclusions._matches(query), self._exclusions._exclude_self[query])
        rows = np.unique(rows[rows >= 0])
        return rows[self.is_excluded(np.array(query), rows)]

    def label_counts(self) -> Integers:
        """How many gallery rows have the label of each query, int64 [q]: its positives and same-label exclusions."""
        return self._counts

    def have_match(self) -> Booleans:
        """Whether the gallery has another image of the label of each query, in its group or not, bool [q]."""
        own_rows = self._exclusions._exclude_self
        return self._counts - ((own_rows >= 0) & self._is_match(np.arange(len(own_rows)), own_rows)) > 0

    def check_any_positive(self, have_positive: Booleans) -> None:
        """Raise InputError if no query has a positive; the message says whether groups exclude all matches.

        Args:
            have_positive: bool [q], whether each query has one.
        """
        if have_positive.any():
            return
        subject, excluded = f"none of the {len(have_positive):,} queries has", int(self.have_match().sum())
        if excluded:
            raise InputError(
                f"{subject} an image of its class to find in another group: the column group excludes all matches of "
                f"{excluded:,}; leave the column out, or add images of other groups"
            )
        raise InputError(
            f"{subject} another image of its class to find; evaluation needs at least one class with two images"
        )

    def label_ranges(self, start: int, stop: int) -> tuple[Integers, Integers]:
        """Where the gallery rows with the labels of queries `start` to `stop` begin and end in `rows_by_label`."""
        return self._begin[start:stop], self._end[start:stop]

    def is_excluded(self, queries: Integers, rows: Integers) -> Booleans:
        """Whether gallery rows are excluded from the rankings of queries; the two arrays are broadcast."""
        base = self._exclusions
        group = base._query_groups[queries]
        same_group = (group >= 0) & (base._gallery_groups[rows] == group)
        return (rows == base._exclude_self[queries]) | (same_group & base._is_match(queries, rows))

    @property
    def _excluded_pairs(self) -> ExcludedPairs:
        """The arrays behind :meth:`is_excluded`, for compiled kernels."""
        base = self._exclusions
        return ExcludedPairs(
            base._exclude_self, base._query_groups, base._gallery_groups, base.query_labels, base.gallery_labels
        )

    def excluded_other_labels(self) -> tuple[Integers, Integers]:
        """The excluded pairs whose labels differ: queries, ascending, and gallery rows."""
        exclude_self = self._exclusions._exclude_self
        queries = np.flatnonzero((self.label_counts() > 0) & (exclude_self >= 0))
        queries = queries[~self._is_match(queries, exclude_self[queries])]
        rows = exclude_self[queries]
        if not self._contains_finer_labels():
            more_queries, more_rows = self._same_group_other_labels()
            queries, rows = np.concatenate([queries, more_queries]), np.concatenate([rows, more_rows])
        order = np.argsort(queries, kind="stable")
        return queries[order], rows[order]

    def _same_group_other_labels(self) -> tuple[Integers, Integers]:
        """Same-group positives by the labels of `exclusions` that have different labels here."""
        base, queries, rows = self._exclusions, [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        for query in np.flatnonzero((self.label_counts() > 0) & (base._query_groups >= 0)):
            excluded = base.excluded(int(query))
            rows.append(excluded[~self._is_match(np.full(len(excluded), query), excluded)])
            queries.append(np.full(len(rows[-1]), query))
        return np.concatenate(queries), np.concatenate(rows)

    def _contains_finer_labels(self) -> bool:
        """Whether rows with equal labels in `exclusions` have equal labels here."""
        base = self._exclusions
        fine, coarse = base.gallery_labels[base.rows_by_label], self.gallery_labels[base.rows_by_label]
        queries = np.flatnonzero(base.label_counts() > 0)
        agree = self._is_match(queries, base.rows_by_label[base._begin[queries]]) | (self.query_labels[queries] < 0)
        return base is self or bool(agree.all() and ((np.diff(fine) > 0) | (np.diff(coarse) == 0)).all())

    def _is_match(self, queries: Integers, rows: Integers) -> Booleans:
        labels = self.query_labels[queries]
        return (labels >= 0) & (self.gallery_labels[rows] == labels)

    def _matches(self, query: int) -> Integers:
        return self.rows_by_label[self._begin[query] : self._end[query]]


def class_group_codes(table: Table) -> Integers:
    """Number the pairs of class and group, whose images do not find each other: int64 [rows], -1 without a group."""
    groups = group_codes(table)
    return np.where(groups < 0, -1, table.labels * (groups.max(initial=0) + 1) + groups)


def group_codes(table: Table) -> Integers:
    """Number the groups of a table: int64 [rows], -1 for no group (a negative integer, or no column `group`)."""
    if not table.has("group"):
        return np.full(len(table), -1)
    codes, groups = table.codes("group"), table.frame["group"].to_numpy()
    return np.where(groups < 0, -1, codes) if groups.dtype.kind == "i" else codes
