"""What is to be found for every query, and what is left out of its ranking."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vicinal.data.table import Table

Integers = npt.NDArray[np.int64]


class Relevance:
    """Which gallery rows are a query's positives, and which are left out of its ranking.

    Positives have the query's label. Left out are the query itself and its same-group matches: gallery rows of the same
    label and the same group (camera, sequence), as in person and vehicle re-identification.

    Args:
        query_labels: int64 [q]; a negative label matches nothing.
        gallery_labels: int64 [g].
        exclude: int64 [q], the gallery row that is the query itself, -1 (the default) for none.
        query_groups: int64 [q], -1 (the default) for none.
        gallery_groups: int64 [g].
        ranking: whose rankings these are, and so what is left out of them, in the place of `exclude` and groups. A
            coarser label has other positives in the same ranking.

    Attributes:
        query_labels: int64 [q].
        gallery_labels: int64 [g].
        by_label: int64 [g], the gallery rows, one label after the other, ascending within each.

    Example:
        >>> labels = np.array([0, 1, 0, 0])
        >>> relevance = Relevance(labels, labels, exclude=np.arange(4))
        >>> relevance.positives(0), relevance.ignored(0)
        (array([2, 3]), array([0]))
    """

    def __init__(
        self,
        query_labels: Integers,
        gallery_labels: Integers,
        exclude: Integers | None = None,
        query_groups: Integers | None = None,
        gallery_groups: Integers | None = None,
        ranking: Relevance | None = None,
    ) -> None:
        nothing = np.full(len(query_labels), -1)
        self._ranking = self if ranking is None else ranking
        self._exclude = nothing if exclude is None else exclude
        self._query_groups = nothing if query_groups is None else query_groups
        self._gallery_groups = np.full(len(gallery_labels), -1) if gallery_groups is None else gallery_groups
        self.query_labels, self.gallery_labels = query_labels, gallery_labels
        self.by_label = np.argsort(gallery_labels, kind="stable")
        self._first = np.searchsorted(gallery_labels[self.by_label], query_labels, "left")
        self._last = np.searchsorted(gallery_labels[self.by_label], query_labels, "right")
        self._last[query_labels < 0] = self._first[query_labels < 0]

    def positives(self, query: int) -> Integers:
        """The gallery rows to be found, ascending."""
        matches = self._matches(query)
        if self._ranking is not self:
            return matches[~np.isin(matches, self._ranking.ignored(query))]
        return matches[~self._is_ignored(query, matches)]

    def ignored(self, query: int) -> Integers:
        """The gallery rows left out of the query's ranking."""
        if self._ranking is not self:
            return self._ranking.ignored(query)
        itself = self._exclude[query : query + 1]
        itself = itself[itself >= 0]
        if self._query_groups[query] < 0:
            return itself
        matches = self._matches(query)
        return np.union1d(matches[self._is_ignored(query, matches)], itself)

    def sizes(self) -> Integers:
        """How many gallery rows have each query's label, int64 [queries]: its positives and some that are left out."""
        return self._last - self._first

    def same_label(self, start: int, stop: int) -> tuple[Integers, Integers]:
        """Where the gallery rows of the labels of queries `start` to `stop` begin and end in `by_label`."""
        return self._first[start:stop], self._last[start:stop]

    def is_left_out(self, queries: Integers, rows: Integers) -> npt.NDArray[np.bool_]:
        """Whether these gallery rows are left out of the rankings of these queries; of any shapes that go together."""
        of = self._ranking
        group = of._query_groups[queries]
        same = (group >= 0) & (of._gallery_groups[rows] == group)
        return (rows == of._exclude[queries]) | (same & of._is_match(queries, rows))

    def others_left_out(self) -> tuple[Integers, Integers]:
        """Queries, ascending, and gallery rows that are left out of their rankings though of another label."""
        exclude = self._ranking._exclude
        queries = np.flatnonzero((self.sizes() > 0) & (exclude >= 0))
        queries = queries[~self._is_match(queries, exclude[queries])]
        rows = exclude[queries]
        if not self._nests():
            several, more = self._other_matches_of_group()
            queries, rows = np.concatenate([queries, several]), np.concatenate([rows, more])
        order = np.argsort(queries, kind="stable")
        return queries[order], rows[order]

    def _other_matches_of_group(self) -> tuple[Integers, Integers]:
        """Same-group matches by the labels of the ranking that are none by these labels."""
        of, queries, rows = self._ranking, [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        for query in np.flatnonzero((self.sizes() > 0) & (of._query_groups >= 0)):
            ignored = of.ignored(int(query))
            rows.append(ignored[~self._is_match(np.full(len(ignored), query), ignored)])
            queries.append(np.full(len(rows[-1]), query))
        return np.concatenate(queries), np.concatenate(rows)

    def _nests(self) -> bool:
        """Whether what has the same label in the ranking has the same label here."""
        of = self._ranking
        fine, coarse = of.gallery_labels[of.by_label], self.gallery_labels[of.by_label]
        queries = np.flatnonzero(of.sizes() > 0)
        agree = self._is_match(queries, of.by_label[of._first[queries]]) | (self.query_labels[queries] < 0)
        return of is self or bool(agree.all() and ((np.diff(fine) > 0) | (np.diff(coarse) == 0)).all())

    def _is_match(self, queries: Integers, rows: Integers) -> npt.NDArray[np.bool_]:
        labels = self.query_labels[queries]
        return (labels >= 0) & (self.gallery_labels[rows] == labels)

    def _matches(self, query: int) -> Integers:
        return self.by_label[self._first[query] : self._last[query]]

    def _is_ignored(self, query: int, matches: Integers) -> npt.NDArray[np.bool_]:
        group = self._query_groups[query]
        itself: npt.NDArray[np.bool_] = matches == self._exclude[query]
        return itself | (self._gallery_groups[matches] == group) if group >= 0 else itself


def group_codes(table: Table) -> Integers:
    """The group of each row as a number, int64 [rows]; -1 for none: a negative integer, or no column `group`.

    Example:
        >>> import pandas as pd
        >>> group_codes(Table(pd.DataFrame({"group": [7, -1, 3]})))
        array([ 2, -1,  1])
    """
    if not table.has("group"):
        return np.full(len(table), -1)
    codes, groups = table.codes("group"), table.frame["group"].to_numpy()
    return np.where(groups < 0, -1, codes) if groups.dtype.kind == "i" else codes
