"""Gallery vectors that a query must not find: the query itself, and vectors of its group."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vicinal.utils.arrays import Booleans, Integers
from vicinal.utils.errors import InputError


class Exclusions:
    """The gallery vectors that are excluded from each query's results.

    `exclude_self`, int64 [q], is the gallery row that is the query itself, -1 for none; -1 as a group stands for none.
    """

    def __init__(
        self,
        num_queries: int,
        num_gallery: int,
        exclude_self: Integers | None = None,
        query_groups: Integers | None = None,
        gallery_groups: Integers | None = None,
    ) -> None:
        if (query_groups is None) != (gallery_groups is None):
            raise InputError("query_groups and gallery_groups go together; give both or neither")
        self._num_gallery = num_gallery
        self.exclude_self = _checked_column(exclude_self, num_queries, "exclude_self", "query")
        self._query_groups = _checked_column(query_groups, num_queries, "query_groups", "query")
        self._gallery_groups = _checked_column(gallery_groups, num_gallery, "gallery_groups", "gallery vector")
        self.has_groups = query_groups is not None
        check_exclude_self(self.exclude_self, num_gallery)

    def check_enough(self, k: int) -> None:
        """Raise InputError when `k` is below 1 or larger than the rest of the gallery for some query."""
        if k < 1:
            raise InputError(f"k = {k} is invalid; use k >= 1")
        num_left = self._num_gallery - self.num_excluded()
        fewest = int(num_left.min(initial=self._num_gallery))
        query = int(num_left.argmin()) if len(num_left) else 0
        if fewest < 1:
            raise InputError(
                f"a gallery of {self._num_gallery} images is too small: without itself and its group, "
                f"nothing is left for query {query} to find"
            )
        if k > self._num_gallery:
            raise InputError(f"k = {k} is larger than the gallery of {self._num_gallery} images; use k <= {fewest}")
        if k > fewest:
            raise InputError(
                f"k = {k} is larger than the {fewest} gallery images left for query {query} "
                f"without itself and its group; use k <= {fewest}"
            )

    def num_excluded(self) -> Integers:
        """Return how many gallery vectors are excluded for each query, int64 [q]."""
        in_gallery = self.exclude_self >= 0
        if not self.has_groups:
            return in_gallery.astype(np.int64)
        ordered = np.sort(self._gallery_groups)
        first, last = (np.searchsorted(ordered, self._query_groups, side) for side in ("left", "right"))
        in_own_group = self._gallery_groups[self.exclude_self] == self._query_groups
        return np.where(self._query_groups >= 0, last - first + (in_gallery & ~in_own_group), in_gallery)

    def allows(self, queries: Integers, rows: Integers) -> Booleans:
        """Return for pairs of queries and gallery rows whether the query may find the row, bool [pairs]."""
        allowed: Booleans = rows != self.exclude_self[queries]
        if not self.has_groups:
            return allowed
        groups = self._query_groups[queries]
        return allowed & ((groups != self._gallery_groups[rows]) | (groups < 0))

    def mask(self, scores: Tensor, queries: slice, start: int) -> None:
        """Set scores [queries, columns] of excluded gallery rows, from `start` on, to minus infinity, in place."""
        own_rows = self.exclude_self[queries]
        if (own_rows >= 0).any():
            columns = torch.from_numpy(own_rows) - start
            rows = ((columns >= 0) & (columns < scores.shape[1])).nonzero().flatten()
            scores[rows.to(scores.device), columns[rows].to(scores.device)] = -torch.inf
        if self.has_groups:
            query_groups = torch.from_numpy(self._query_groups[queries]).to(scores.device)[:, None]
            gallery_groups = torch.from_numpy(self._gallery_groups[start : start + scores.shape[1]]).to(scores.device)
            scores.masked_fill_((query_groups == gallery_groups) & (query_groups >= 0), -torch.inf)


def check_exclude_self(exclude_self: Integers, num_gallery: int) -> None:
    """Raise InputError when `exclude_self` names a row beyond the gallery; negative values mean none."""
    if (exclude_self >= num_gallery).any():
        raise InputError(f"exclude_self names gallery row {exclude_self.max()}; the gallery has {num_gallery} rows")


def _checked_column(values: Integers | None, length: int, name: str, unit: str) -> Integers:
    """Return the values as int64 [length]; all are -1 if they are not given."""
    values = np.full(length, -1) if values is None else np.asarray(values)
    if values.shape != (length,):
        raise InputError(f"{name} has shape {list(values.shape)}; expected one value per {unit}: [{length}]")
    return values.astype(np.int64)
