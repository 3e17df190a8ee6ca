"""Searching an index for queries of a table: results with the columns of the matches, for people, JSON and pictures."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from vicinal.data.columns import BOX_COLUMNS, PUBLISHED_BOX_COLUMNS, image_keys, is_known_column, row_boxes
from vicinal.data.table import Table
from vicinal.models.refiner import ContextRefiner
from vicinal.retrieval.index.interface import ImageIndex
from vicinal.retrieval.index.metadata import FILE_COLUMNS, Record
from vicinal.retrieval.neighbors import Neighbors
from vicinal.utils.arrays import Booleans, Floats, Integers
from vicinal.utils.errors import InputError

if TYPE_CHECKING:
    from vicinal.retrieval.reranking.base import Reranking

OWN_NAMES = ("score", "box", "matching_patches")  # of a match; table columns of these names are renamed
ATTEMPTS = 5  # of a search whose matches are deleted before they are looked up
SHOWN = ("id", "path", "label", "score", "box")  # in a line of text by themselves, not as further columns


@dataclass(frozen=True)
class Decision:
    """The decision about a query.

    Attributes:
        is_match: whether the best match is accepted; otherwise the query is of an unknown class.
        label: the most frequent class of the accepted matches, in a tie that of the best match (k-nearest neighbors);
            None where none is accepted or has a label.
        score: of the best match, of the kind that the calibration is about; None without a match.
        probability: that the best match is right; None without a calibration or a match.
    """

    is_match: bool
    label: Any = None
    score: float | None = None
    probability: float | None = None

    def __str__(self) -> str:
        probability = "" if self.probability is None else f"probability {self.probability:.2f}"
        if not self.is_match:
            return f"no match{f' ({probability})' if probability else ''}"
        return ", ".join(filter(None, ["match" if self.label is None else f"match: {self.label}", probability]))


@dataclass(frozen=True)
class SearchResult:
    """A query and its matches in an index.

    Attributes:
        query: `id`, `path`, `label` and the other columns of the query, as far as they are known.
        matches: best first; `id` and `score` (cosine similarity, or that of a re-ranking) of each, and `path`, `label`
            and the other columns of the index where they are known. An object within a picture has a `box`: left, top,
            right and bottom. After a re-ranking by local features it has `matching_patches`, their number.
        decision: whether there is a match, and of what class; None where it was not asked for.
    """

    query: Record
    matches: list[Record]
    decision: Decision | None = None

    def to_dict(self) -> Record:
        """Return plain values, ready for JSON."""
        decided = {} if self.decision is None else {"decision": asdict(self.decision)}
        return {"query": self.query, "matches": self.matches, **decided}

    def __str__(self) -> str:
        decided = "" if self.decision is None else f"  -> {self.decision}"
        if self.matches and not any(match.get("matching_patches", 1) for match in self.matches):
            decided += "  -> no match has a patch in common with it"
        lines = [_describe(self.query, "query") + decided]
        for rank, match in enumerate(self.matches, start=1):
            lines.append(f"{rank:4d}  {match['score']:.4f}  {_describe(match, 'id ' + str(match['id']))}")
        return "\n".join(lines)


def further_columns(record: Record) -> dict[str, Any]:
    """The columns of a query or match that have no meaning to Vicinal, such as a price or a name."""
    hidden = (*SHOWN, *PUBLISHED_BOX_COLUMNS)
    return {name: value for name, value in record.items() if name not in hidden and not is_known_column(name)}


def search_images(
    index: ImageIndex,
    vectors: Floats,
    table: Table,
    k: int,
    exclude_self: bool = False,
    refiner: ContextRefiner | None = None,
    *,
    where: str | None = None,
    group_by: str | None = None,
    reranking: Reranking | None = None,
    max_candidates: int | None = None,
) -> list[SearchResult]:
    """Search an index for every row of a table.

    Args:
        index: the index to search.
        vectors: float32 [q, d], the queries.
        table: one row per query.
        k: number of matches per query; with `where` or `group_by` there may be fewer, as in a database that searches
            approximately.
        exclude_self: whether to leave out matches that have the query's own path and box; there are k others unless the
            index has fewer.
        refiner: the refiner that the index was built with, if any. The embedding of a query whose image is in the index
            is not among the neighbors by which the query is refined, whether its match is left out or not; another
            image of the same path counts as a duplicate.
        where: only images whose columns fulfill this condition are found, such as `price < 20`; see
            :func:`vicinal.data.matching_rows`.
        group_by: a column of the index, such as the product: of the images with one value in it, only the best is
            found. Images without a value are groups of their own.
        reranking: a re-ranking method, such as `ContextualReranking()`; it compares each query with all images that may
            be found, exactly, whatever the kind of the index.
        max_candidates: with `group_by`, how many of the nearest images are compared to find k groups; None: all, if
            need be.

    Raises:
        InputError: k is larger than the index, vectors have a different dimension, the refiner is not the index's, no
            image fulfills the condition, a column does not exist, or a refined index is to be re-ranked.

    Example:
        >>> from vicinal import Index
        >>> table = Table(pd.DataFrame({"path": ["a.png", "b.png"], "label": ["cat", "dog"], "price": [5, 50]}))
        >>> vectors = np.eye(2, dtype=np.float32)
        >>> index = Index.build(vectors, table)
        >>> search_images(index, vectors, table, k=1)[0].matches[0]["label"]
        'cat'
        >>> [match["price"] for match in search_images(index, vectors, table, k=2, where="price > 10")[0].matches]
        [50]
    """
    group_by = index.column_aliases.get(group_by, group_by) if group_by is not None else None
    for attempt in range(ATTEMPTS):
        is_last = attempt == ATTEMPTS - 1
        with index.without_changes() if is_last else nullcontext(), index.reading():
            search = _Search(index, vectors, table, refiner, where, reranking, exclude_self)
            results = search.run(k, group_by, max_candidates)
        if not search.has_lost:
            break
    return results


class _Search:
    def __init__(
        self,
        index: ImageIndex,
        vectors: Floats,
        table: Table,
        refiner: ContextRefiner | None,
        where: str | None,
        reranking: Reranking | None,
        exclude_self: bool,
    ) -> None:
        self.index, self.vectors, self.table, self.refiner = index, vectors, table, refiner
        self.reranking, self.exclude_self = reranking, exclude_self
        self.has_lost = False  # whether images were deleted before they were looked up
        self.among = index.select(where)
        if where is not None and not index.count(self.among, at_most=1):
            raise InputError(f"no image of the index matches {where}")
        if reranking is not None and index.refiner_fingerprint is not None:
            raise InputError("the index holds refined embeddings, which are not re-ranked; leave out the re-ranking")
        needs_own = reranking is not None or refiner is not None
        self._own = index.ids_by_key(table.image_keys) if needs_own and table.has("path") else np.full(len(table), -1)
        self._where = where

    def run(self, k: int, group_by: str | None, max_candidates: int | None) -> list[SearchResult]:
        """The k matches of each query, the best of their groups."""
        # A query that is in the index takes one match more; an index of only k images cannot give it.
        number = max(k, self.index.count(self.among, at_most=k + 1)) if self.exclude_self else k
        if self._where is not None or group_by is not None:
            number = self.index.count(self.among, at_most=number)
        while True:
            neighbors = self.nearest(number)
            results = self.results(neighbors, k, group_by)
            # Without groups, a larger search finds more only in place of the query itself, and not where this one did
            # not find as many as it could.
            is_last = group_by is None and (not self.exclude_self or (neighbors.ids < 0).any())
            if is_last or all(len(each.matches) >= k for each in results):
                return results
            more = 4 * number
            if group_by is not None and max_candidates is not None:
                more = min(more, max(max_candidates, number))
            if (more := self.index.count(self.among, at_most=more)) <= number:
                return results
            number = more

    def nearest(self, number: int) -> Neighbors:
        if self.reranking is not None:
            return self._reranked(number, self.reranking)
        query_ids = self._own if self.refiner is not None and self.table.has("path") else None
        return self.index.search(self.vectors, number, self.refiner, query_ids, self.among)

    def _reranked(self, number: int, reranking: Reranking) -> Neighbors:
        from vicinal.retrieval.reranking.rerank import rerank

        self.index.check_refiner(self.refiner)
        ids, gallery = self._gallery()
        own = self._own_rows(ids) if self.exclude_self else None
        number = min(number, len(gallery) - int(own is not None and bool((own >= 0).any())))
        if number < 1:
            raise InputError("the index has no image but the query itself")
        neighbors = rerank(self.vectors, gallery, number, reranking.among(ids), exclude_self=own)
        return Neighbors(neighbors.scores, ids[neighbors.ids])

    def _gallery(self) -> tuple[Integers, Floats]:
        """Ids, ascending, and vectors of all images that may be found."""
        if self._where is not None:
            ids = self.index.where(self._where)
            return ids, self.index.vectors_of(ids)
        vectors, frame = self.index.contents()
        return frame["id"].to_numpy(), vectors

    def _own_rows(self, ids: Integers) -> Integers:
        """The row of each query among the ids of images that may be found; -1 if it is not there."""
        rows = np.searchsorted(ids, self._own)
        found = np.append(ids, -1)[rows] == self._own
        return np.where(found & (self._own >= 0), rows, -1)

    def results(self, neighbors: Neighbors, k: int, group_by: str | None) -> list[SearchResult]:
        """The first k matches of each query, with their columns."""
        ids_found = np.unique(neighbors.ids)
        found = self.index.lookup(ids_found[ids_found >= 0], skip_unknown=True)
        if group_by is not None and group_by not in self.index.columns:
            columns = ", ".join(column for column in self.index.columns if column not in FILE_COLUMNS)
            raise InputError(f"the index has no column {group_by!r} to group by; its columns are {columns}")
        exists = np.isin(neighbors.ids, found["id"])  # False where fewer are found, or one was just deleted
        self.has_lost |= bool((~exists & (neighbors.ids >= 0)).any())
        rows = np.where(exists, np.searchsorted(found["id"], neighbors.ids), 0)
        chosen = self._choose_matches(found, rows, exists, k, group_by if group_by in found else None)
        matched = [each[left] for each, left in zip(rows, chosen, strict=True)]
        some = np.unique(np.concatenate([rows[:0].ravel(), *matched]))
        records = dict(zip(some.tolist(), plain_records(found.iloc[some]), strict=True))
        results = []
        for number, (query, each, left, scores) in enumerate(
            zip(plain_records(self.table.frame), matched, chosen, neighbors.scores, strict=True)
        ):
            pairs = zip(each.tolist(), scores[left].tolist(), self._explain_matches(number, found, each), strict=True)
            matches = [{**records[row], "score": score, **explained} for row, score, explained in pairs]
            results.append(SearchResult(query, matches))
        return results

    def _explain_matches(self, query: int, found: pd.DataFrame, rows: Integers) -> list[Record]:
        """Further values of the re-ranking about the matches of a query, by their rows in `found`."""
        if self.reranking is None:
            return [{} for _ in rows]
        return self.reranking.explain(query, found["id"].to_numpy()[rows])

    def _choose_matches(
        self, found: pd.DataFrame, rows: Integers, exists: Booleans, k: int, group_by: str | None
    ) -> list[Integers]:
        """The positions of the first k matches among the neighbors of each query, [q, neighbors].

        Neighbors are given by their rows in `found`, if they exist there; grouped searches have very many neighbors.
        """
        keys = None
        if self.exclude_self and self.table.has("path") and "path" in found:
            keys = np.array(image_keys(found), dtype=object)
            keys[found["path"].isna().to_numpy()] = None
        groups = None if group_by is None else _group_codes(found[group_by])
        chosen = []
        for query, each in enumerate(rows):
            is_left = exists[query]
            if keys is not None and is_left.any():
                is_left = is_left & (keys[each] != self.table.image_keys[query])
            left = np.flatnonzero(is_left)
            chosen.append((left if groups is None else _first_of_groups(groups[each], left))[:k])
        return chosen


def _group_codes(values: pd.Series) -> Integers:
    """A number for each distinct value; a missing value is a group of its own."""
    codes = pd.factorize(values)[0].astype(np.int64)
    return np.where(codes < 0, -1 - np.arange(len(codes)), codes)


def _first_of_groups(groups: Integers, among: Integers) -> Integers:
    """The first member of each group among the given positions, in their order."""
    return among[np.sort(np.unique(groups[among], return_index=True)[1])]


def plain_records(frame: pd.DataFrame) -> list[Record]:
    """Return `id`, `path`, `label` and the other columns of every row as plain values, without missing ones.

    The columns of a bounding box are one list, and those about the file are left out. Columns that a table calls
    `score` or `box` are `score_of_table` and `box_of_table`.
    """
    records: list[Record] = [{} for _ in range(len(frame))]
    hidden = {*FILE_COLUMNS, *(BOX_COLUMNS if set(BOX_COLUMNS) <= set(frame) else ())}
    first = [column for column in ("id", "path", "label") if column in frame]
    for column in [*first, *(column for column in frame if column not in (*first, *hidden))]:
        present = frame[column].notna().tolist()
        for record, value, is_present in zip(records, frame[column].tolist(), present, strict=True):
            if is_present:
                name = f"{column}_of_table" if column in OWN_NAMES else str(column)
                record[name] = _plain(value) if column != "path" else str(value)
    for record, box in zip(records, row_boxes(frame), strict=True):
        record |= {} if box is None else {"box": list(box)}
    return records


def _plain(value: Any) -> Any:
    """Return text, a number or a boolean as it is, ready for JSON; other values, such as dates, as text."""
    value = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, str | int | float) else str(value)


def _describe(record: Record, default: str) -> str:
    label = f"{record['label']}  " if "label" in record else ""
    box = f" [{', '.join(f'{edge:g}' for edge in record['box'])}]" if "box" in record else ""
    further = ", ".join(f"{name} {value}" for name, value in further_columns(record).items() if value != "")
    return label + str(record.get("path", default)) + box + (f"  ({further})" if further else "")
