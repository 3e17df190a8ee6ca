"""Exact nearest neighbours by cosine similarity, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vicinal.errors import InputError
from vicinal.retrieval.scores import (
    BLOCK_ROWS,
    Array,
    ScoreBlock,
    UnitVectors,
    check_chunk,
    check_exclude,
    check_same_dim,
    rows_within_budget,
)

FEWEST_ROWS, MOST_ROWS = 256, 4096  # queries a block: fewer would make the matrix product slow, more bring nothing


@dataclass(frozen=True)
class Neighbors:
    """The nearest gallery vectors of each query, best first.

    Attributes:
        scores: float32 [queries, k], cosine similarities.
        indices: int64 [queries, k], rows of the gallery; equal scores stand in the order of the gallery.
    """

    scores: npt.NDArray[np.float32]
    indices: npt.NDArray[np.int64]


def top_k(
    queries: Array,
    gallery: Array,
    k: int,
    *,
    exclude: npt.NDArray[np.int64] | None = None,
    query_groups: npt.NDArray[np.int64] | None = None,
    gallery_groups: npt.NDArray[np.int64] | None = None,
    chunk: int | None = None,
    device: torch.device | str | None = None,
) -> Neighbors:
    """Find the `k` gallery vectors most similar to each query, exactly.

    Scores are float32 cosine similarities (every vector is divided by its length). Blocks of queries
    meet blocks of the gallery, so that about 64 MB are needed beside the vectors whatever the sizes; the result does
    not depend on the blocks.

    Args:
        queries: float [q, dim], numpy or torch, any precision.
        gallery: float [g, dim].
        k: neighbours a query.
        exclude: int64 [q], the gallery row that is the query itself and is left out (leave-one-out), -1 for none.
        query_groups: int64 [q]; gallery vectors of the query's own group are left out, -1 for no group.
        gallery_groups: int64 [g].
        chunk: queries a block; by default chosen to fill the memory budget.
        device: where to compute; by default where `queries` lies.

    Returns:
        Scores and gallery rows, both [q, k].

    Raises:
        InputError: NaN or infinity in a vector, different dimensions, `k` larger than what is left of the gallery, or
            `chunk` below 1.

    Example:
        >>> gallery = np.eye(3, dtype=np.float32)
        >>> top_k(gallery[:1], gallery, k=2, exclude=np.array([0])).indices
        array([[1, 2]])
    """
    check_chunk(chunk)
    unit_queries = UnitVectors(queries, "query", device=device)
    unit_gallery = UnitVectors(gallery, "gallery vector", device=unit_queries.device)
    left_out = LeftOut(len(unit_queries), len(unit_gallery), exclude, query_groups, gallery_groups)
    return nearest(unit_queries, unit_gallery, k, left_out, chunk)


def nearest(
    queries: UnitVectors, gallery: UnitVectors, k: int, left_out: LeftOut, chunk: int | None = None
) -> Neighbors:
    """Find the `k` most similar as :func:`top_k` does, for vectors that are unit vectors already.

    Args:
        queries: [q, dim].
        gallery: [g, dim].
        k: neighbours a query.
        left_out: what each query must not find.
        chunk: queries a block; by default chosen to fill the memory budget.

    Raises:
        InputError: different dimensions, or `k` larger than what is left of the gallery.

    Example:
        >>> vectors = UnitVectors(np.eye(3), "vector")
        >>> nearest(vectors, vectors, 1, LeftOut(3, 3, exclude=np.arange(3))).indices.ravel()
        array([1, 0, 0])
    """
    check_same_dim(queries, gallery)
    left_out.check_enough(k)
    rows = chunk or rows_within_budget(len(gallery), FEWEST_ROWS, MOST_ROWS)
    scores = np.empty((len(queries), k), dtype=np.float32)
    indices = np.empty((len(queries), k), dtype=np.int64)
    columns = min(len(gallery), _columns_within_budget(rows, k))
    block = ScoreBlock(min(rows, len(queries)), columns, queries.device)
    for start in range(0, len(queries), rows):
        place = slice(start, min(start + rows, len(queries)))
        best, found = _search(queries, gallery, place, k, columns, block, left_out)
        scores[place], indices[place] = best.cpu().numpy(), found.cpu().numpy()
    return Neighbors(scores, indices)


def _columns_within_budget(rows: int, k: int) -> int:
    """Gallery vectors a block: whole matrix products, and many enough that merging the best k costs little."""
    columns = max(rows_within_budget(rows, BLOCK_ROWS, 2**30), 16 * k)
    return columns // BLOCK_ROWS * BLOCK_ROWS if columns > BLOCK_ROWS else columns


def _search(
    queries: UnitVectors,
    gallery: UnitVectors,
    place: slice,
    k: int,
    columns: int,
    block: ScoreBlock,
    left_out: LeftOut,
) -> tuple[Tensor, Tensor]:
    """The best k of the whole gallery for one block of queries."""
    vectors = queries.block(place.start, place.stop)
    best = torch.empty(len(vectors), 0, device=queries.device)
    found = torch.empty(len(vectors), 0, dtype=torch.int64, device=queries.device)
    for start in range(0, len(gallery), columns):
        stop = min(start + columns, len(gallery))
        scores = block.fill(vectors, gallery, start, stop)
        left_out.remove(scores, place, start)
        values, indices = _best(scores, min(k, stop - start))
        best, found = torch.cat([best, values], dim=1), torch.cat([found, indices + start], dim=1)
        if start > 0:  # what was found before stands first, so that a stable sort keeps equal scores in gallery order
            order = best.argsort(dim=1, descending=True, stable=True)[:, :k]
            best, found = best.gather(1, order), found.gather(1, order)
    return best, found


def _best(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The largest k of each row in descending order, equal ones by ascending column (`topk` promises no order)."""
    values, columns = scores.topk(min(k + 1, scores.shape[1]), dim=1)
    cut = (values[:, k - 1 : k] == values[:, k:]).any(dim=1).nonzero().flatten()
    if len(cut):  # equal scores on both sides of the cut: choose those of the lowest columns
        columns[cut, :k] = _first_of_equals(scores[cut], values[cut, k - 1 : k], k)
        values[cut, :k] = scores[cut].gather(1, columns[cut, :k])
    values, columns = values[:, :k], columns[:, :k]
    unordered = (values[:, :-1] <= values[:, 1:]).any(dim=1).nonzero().flatten()
    if len(unordered):
        some = columns[unordered].sort(dim=1).values
        order = scores[unordered[:, None], some].argsort(dim=1, descending=True, stable=True)
        columns[unordered] = some.gather(1, order)
        values[unordered] = scores[unordered[:, None], columns[unordered]]
    return values, columns


def _first_of_equals(scores: Tensor, least: Tensor, k: int) -> Tensor:
    """Columns [rows, k], ascending: all scores above `least`, then the first of those equal to it."""
    above, equal = scores > least, scores == least
    wanted = k - above.sum(dim=1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(dim=1) <= wanted))
    return chosen.nonzero()[:, 1].reshape(len(scores), k)


class LeftOut:
    """The gallery vectors that a query must not find: itself and its group.

    Args:
        queries: how many.
        gallery: how many.
        exclude: int64 [q], the gallery row that is the query itself, -1 (the default) for none.
        query_groups: int64 [q], together with `gallery_groups`; -1 for no group.
        gallery_groups: int64 [g].

    Attributes:
        itself: int64 [q], `exclude` as it is used.

    Raises:
        InputError: an array of another length, or a row to exclude that is not there.

    Example:
        >>> LeftOut(2, 3, exclude=np.array([0, -1])).allows(np.array([0, 0, 1]), np.array([0, 1, 0]))
        array([False,  True,  True])
    """

    def __init__(
        self,
        queries: int,
        gallery: int,
        exclude: npt.NDArray[np.int64] | None = None,
        query_groups: npt.NDArray[np.int64] | None = None,
        gallery_groups: npt.NDArray[np.int64] | None = None,
    ) -> None:
        if (query_groups is None) != (gallery_groups is None):
            raise InputError("query_groups and gallery_groups go together; give both or neither")
        self._gallery = gallery
        self.itself = _per_row(exclude, queries, "exclude", "query")
        self._query_groups = _per_row(query_groups, queries, "query_groups", "query")
        self._gallery_groups = _per_row(gallery_groups, gallery, "gallery_groups", "gallery vector")
        self._by_group = query_groups is not None
        check_exclude(self.itself, gallery)

    def check_enough(self, k: int) -> None:
        """Refuse a k that some query cannot fill."""
        if k < 1:
            raise InputError(f"k = {k} is impossible; use k >= 1")
        left = self._gallery - self._count()
        least = int(left.min(initial=self._gallery))
        if least < 1:
            query = left.argmin() if len(left) else 0
            raise InputError(
                f"a gallery of {self._gallery} images is too small: without itself and its group, "
                f"nothing is left for query {query} to find"
            )
        if k > self._gallery:
            raise InputError(f"k = {k} is larger than the gallery of {self._gallery} images; use k <= {least}")
        if k > least:
            query = int(left.argmin())
            raise InputError(
                f"k = {k} is larger than the {least} gallery images left for query {query} "
                f"without itself and its group; use k <= {least}"
            )

    def _count(self) -> npt.NDArray[np.int64]:
        """How many gallery vectors each query must not find."""
        itself = self.itself >= 0
        if not self._by_group:
            return itself.astype(np.int64)
        of_gallery = np.sort(self._gallery_groups)
        first, last = (np.searchsorted(of_gallery, self._query_groups, side) for side in ("left", "right"))
        in_group = self._gallery_groups[self.itself] == self._query_groups
        return np.where(self._query_groups >= 0, last - first + (itself & ~in_group), itself)

    def allows(self, queries: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether each of the queries may find the gallery row beside it, bool [pairs]."""
        groups = self._query_groups[queries]
        allowed: npt.NDArray[np.bool_] = rows != self.itself[queries]
        return allowed & ((groups != self._gallery_groups[rows]) | (groups < 0)) if self._by_group else allowed

    def remove(self, scores: Tensor, place: slice, start: int) -> None:
        """Set the scores of what must not be found to minus infinity, in place."""
        if (self.itself[place] >= 0).any():
            columns = torch.from_numpy(self.itself[place]) - start
            rows = ((columns >= 0) & (columns < scores.shape[1])).nonzero().flatten()
            scores[rows.to(scores.device), columns[rows].to(scores.device)] = -torch.inf
        if self._by_group:
            of_query = torch.from_numpy(self._query_groups[place]).to(scores.device)[:, None]
            of_gallery = torch.from_numpy(self._gallery_groups[start : start + scores.shape[1]]).to(scores.device)
            scores.masked_fill_((of_query == of_gallery) & (of_query >= 0), -torch.inf)


def _per_row(values: npt.NDArray[np.int64] | None, rows: int, name: str, what: str) -> npt.NDArray[np.int64]:
    """The values as int64 [rows], all -1 (none) if not given."""
    values = np.full(rows, -1) if values is None else np.asarray(values)
    if values.shape != (rows,):
        raise InputError(f"{name} has shape {list(values.shape)}; expected one value a {what}: [{rows}]")
    return values.astype(np.int64)
