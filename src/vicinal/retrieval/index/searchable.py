"""Embeddings that can be searched, with the metadata of their images, and changed by many threads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from vicinal.data.moved import find_old_root, moved_path
from vicinal.data.table import Table
from vicinal.models.refiner import ContextRefiner
from vicinal.retrieval.index.engines.faiss_engine import Kind
from vicinal.retrieval.index.engines.rescoring import RescoringEngine, create_engine
from vicinal.retrieval.index.interface import check_one_row_per_id, checked_vectors
from vicinal.retrieval.index.metadata import Metadata
from vicinal.retrieval.index.refiner_context import RefinerContext
from vicinal.retrieval.index.searchable_rows import SearchableRows
from vicinal.retrieval.neighbors import Neighbors
from vicinal.retrieval.refinement import refine
from vicinal.retrieval.scores import Array, UnitVectors
from vicinal.utils.arguments import is_integer
from vicinal.utils.arrays import Integers
from vicinal.utils.errors import InputError


class SearchableIndex(SearchableRows):
    """Vectors that are searched by cosine similarity, with metadata of their images, in memory.

    :class:`Index` is one that is kept in a folder.

    Attributes:
        metadata: one row per image that can be found: `id`, and the columns of its table; its own column `id` is called
            `id_of_table`.
        model_fingerprint: identifies the model that made the vectors; None if it is unknown.
        made_with: the flags of `vicinal index` that made the vectors, such as `{"model": "run"}`; empty if unknown.
        root: the folder of the images, which :meth:`move` changes; None if it is unknown.
    """

    @classmethod
    def build(
        cls,
        vectors: Array,
        table: Table,
        kind: Literal["auto"] | Kind = "auto",
        model_fingerprint: str | None = None,
        refiner: ContextRefiner | None = None,
        made_with: Mapping[str, str] | None = None,
        rescore: int | None = None,
    ) -> Self:
        """Build an index of all vectors.

        Args:
            vectors: float [n, dim].
            table: n rows.
            kind: `exact` compares with every vector; `hnsw` is a graph, faster and nearly exact above 100,000 vectors;
                `auto` is `exact` up to 100,000 vectors, `hnsw` above. The others search by codes: `sq8` of one byte per
                dimension and `binary` of one bit compare with every vector; `ivfpq` of about one byte per four
                dimensions and `rabitq` of one bit and eight bytes search the nearest inverted lists.
            model_fingerprint: identifies the model that made the vectors.
            refiner: refines every vector first, by its nearest among the others. These are found by comparing every
                vector with every other, whatever the kind.
            made_with: the flags of the command that made the vectors, which messages about other vectors name.
            rescore: for kinds with codes, how many candidates per neighbor are compared by the vectors themselves,
                which are kept as float16 in a file of the index, not in memory. None: the default of the kind; 0: none,
                the vectors are not kept, and scores are approximate.

        Raises:
            InputError: vectors and table have different lengths, a vector contains NaN or infinity, there are too few
                vectors for `ivfpq`, the kind is unknown, the table has both columns `id` and `id_of_table`, or the
                refiner has a different dimension or is for a different model.
        """
        unit = searched = checked_vectors(vectors, table)
        if refiner is not None:
            refiner.check_model(model_fingerprint)
            searched = UnitVectors(refine(refiner, vectors), "refined embedding")
        engine = create_engine(kind, searched, rescore)
        context = None if refiner is None else RefinerContext.create(engine.kind, unit, refiner)
        index = cls(engine, Metadata.from_table(table, np.arange(len(unit))), model_fingerprint, context, made_with)
        engine.add(searched)
        if context is not None:
            context.engine.add(unit)
        return index

    def describe(self) -> dict[str, str | float | None]:
        """Return what the index is and contains, ready for JSON."""
        with self._lock.read():
            return self._with_provenance(self._facts())

    def _facts(self) -> dict[str, str | int | None]:
        rescore = {"rescore": self.rescore} if self.rescore else {}
        return {
            "kind": self.kind,
            **rescore,
            "images": len(self),
            "dimensions": self.dim,
            "deleted": len(self._engine) - len(self),
            "model_fingerprint": self.model_fingerprint,
            "refiner_fingerprint": self.refiner_fingerprint,
        }

    def add(self, vectors: Array, table: Table, refiner: ContextRefiner | None = None) -> Integers:
        """Add vectors and return their new ids, int64 [n].

        A column that only the index or only the table has is missing in the rows of the other. Where one has integers
        and the other text, as with labels read from folders named by digits, both become text.

        A refined index refines each vector by its nearest among the images it has and the other new ones. Images that
        were refined before stay as they are, though the new ones may now be nearer: build the index again after adding
        many.

        Args:
            vectors: float [n, dim].
            table: n rows.
            refiner: the refiner that the index was built with, if any.

        Raises:
            InputError: vectors and table have different lengths, vectors have a different dimension or contain NaN or
                infinity, a column has another type than before, or the refiner is not the index's.
        """
        self.check_refiner(refiner)
        unit = checked_vectors(vectors, table)
        self._check_dim(unit)
        with self._lock.write():
            return self._add(unit, table, refiner)

    def _add(self, unit: UnitVectors, table: Table, refiner: ContextRefiner | None) -> Integers:
        ids = np.arange(len(self._engine), len(self._engine) + len(unit), dtype=np.int64)
        metadata = self.metadata.concat(Metadata.from_table(table, ids))
        try:
            if self._context is not None and refiner is not None:
                self._context.engine.add(unit)
                unit = self._context.refine(unit, refiner, metadata.ids, query_ids=ids)
        finally:  # also if refining was interrupted, so that both engines have the same ids
            self._engine.add(unit)
        self.metadata = metadata
        return ids

    def upsert(self, vectors: Array, table: Table, refiner: ContextRefiner | None = None) -> Integers:
        """Add vectors in place of those of images with the same path and bounding box; return their ids, int64 [n].

        An image that has the same vector already keeps its id, and gets the columns of the table; others get new ones.
        Of equal rows of the table the last one counts.

        Args:
            vectors: float [n, dim].
            table: n rows; those without a path are added.
            refiner: the refiner that the index was built with, if any.

        Raises:
            InputError: as for :meth:`add`; nothing is changed then.

        Example:
            >>> import pandas as pd
            >>> table = Table(pd.DataFrame({"path": ["/a.png", "/b.png"]}))
            >>> index = SearchableIndex.build(np.eye(2), table)
            >>> index.upsert(np.array([[1.0, 0.0], [1.0, 1.0]]), table)
            array([0, 2])
        """
        self.check_refiner(refiner)
        unit = checked_vectors(vectors, table)
        self._check_dim(unit)
        if not table.has("path"):
            return self.add(vectors, table, refiner)
        last = dict(zip(table.image_keys, range(len(table)), strict=True))
        rows = np.array(sorted(last.values()), dtype=np.int64)
        chosen = table.take(rows)
        with self._lock.write():
            before, engine_size = self.metadata, len(self._engine)
            ids = self.metadata.ids_by_key(chosen.image_keys)
            is_same = self._have_vectors(ids, unit.subset(rows))
            try:
                self.metadata = self.metadata.without(ids[(ids >= 0) & ~is_same])
                if is_same.any():
                    self.metadata = self.metadata.updated(chosen.take(np.flatnonzero(is_same)), ids[is_same])
                if not is_same.all():
                    new = np.flatnonzero(~is_same)
                    ids[new] = self._add(unit.subset(rows[new]), chosen.take(new), refiner)
            except InputError:
                if len(self._engine) == engine_size:
                    self.metadata = before
                raise
        id_of_key = dict(zip(chosen.image_keys, ids.tolist(), strict=True))
        return np.array([id_of_key[key] for key in table.image_keys], dtype=np.int64)

    def _have_vectors(self, ids: Integers, vectors: UnitVectors) -> npt.NDArray[np.bool_]:
        """Whether the images of some ids, -1 for none, have these vectors; False for those of a refined index."""
        is_same = np.zeros(len(ids), dtype=bool)
        known = np.flatnonzero(ids >= 0)
        if self._context is None and len(known):
            is_same[known] = (self._engine.take(ids[known]) == vectors.take(known).cpu().numpy()).all(axis=1)
        return is_same

    def delete(self, ids: npt.ArrayLike) -> None:
        """Delete images: they are no longer found.

        Raises:
            InputError: there is no image with one of the ids.
        """
        with self._lock.write():
            self.metadata = self.metadata.without(ids)

    def update(self, ids: npt.ArrayLike, table: Table) -> None:
        """Replace the columns of images, such as their prices; their vectors stay.

        Args:
            ids: int [n].
            table: n rows.

        Raises:
            InputError: there is no image with one of the ids, there are not as many rows, or a column has another type
                than in other images.
        """
        given = np.asarray(ids, dtype=np.int64)
        check_one_row_per_id(given, table)
        with self._lock.write():
            self.metadata = self.metadata.updated(table, given)

    def move(self, root: str | Path) -> None:
        """Say where the images are after their folder was moved; the folders below it are as they were.

        The old folder is ``root``; if that is unknown, or no image is in the new one at the same place below, it is
        what precedes the longest ending of a path that exists there. Images elsewhere stay where they are.

        Args:
            root: the folder where they are now.

        Raises:
            InputError: the images have no paths, or none of them is in the folder.
        """
        new = os.path.abspath(root)
        with self._lock.write():
            old = find_old_root(self.metadata.paths, new, self.root)
            self.metadata = self.metadata.with_paths(partial(moved_path, old=old, new=new))
            self.root = new if self.root is None else moved_path(self.root, old, new)

    def search(
        self,
        vectors: Array,
        k: int,
        refiner: ContextRefiner | None = None,
        query_ids: npt.ArrayLike | None = None,
        among: npt.ArrayLike | None = None,
    ) -> Neighbors:
        """Find the k nearest vectors of each query.

        A refined index refines each query first, by the nearest embeddings that it contains. Without `query_ids`, a
        query that is in the index is refined by its own embedding too, and so becomes another vector than it was when
        the index was built.

        Args:
            vectors: float [q, dim].
            k: number of neighbors per query.
            refiner: the refiner that the index was built with, if any. Its fingerprint is checked once: do not train it
                further between searches.
            query_ids: int [q], only with a refiner: the id of each query in the index, -1 for none. The query is not
                refined by its own embedding (but may find itself); duplicates under other ids count as neighbors.
            among: the ids that may be found, such as `index.where("price < 20")`; None: all.

        Returns:
            Scores and ids.

        Raises:
            InputError: a vector contains NaN or infinity or has a different dimension, k is larger than the index, the
                refiner is not the index's, or there is no image with one of the `query_ids`.
        """
        self.check_refiner(refiner)
        queries = UnitVectors(vectors, "query")
        self._check_dim(queries)
        with self._lock.read():
            return self._search(queries, k, refiner, query_ids, among)

    def _search(
        self,
        queries: UnitVectors,
        k: int,
        refiner: ContextRefiner | None,
        query_ids: npt.ArrayLike | None,
        among: npt.ArrayLike | None,
    ) -> Neighbors:
        if not len(self):
            raise InputError("the index is empty; add images before searching")
        allowed = self.metadata.ids if among is None else np.unique(self.metadata.ids[self.metadata.positions(among)])
        if not (is_integer(k) and 1 <= k <= len(allowed)):
            where = f"an index of {len(self)} images" if among is None else f"{len(allowed)} images to search among"
            raise InputError(f"k = {k} is impossible in {where}; use 1 to {len(allowed)}")
        own_ids = self._checked_query_ids(query_ids, len(queries))
        if self._context is not None and refiner is not None:
            queries = self._context.refine(queries, refiner, self.metadata.ids, own_ids)
        return self._engine.search(queries, k, allowed)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Keep other threads from changing the index during a block, such as a search and the lookup of its ids."""
        with self._lock.read():
            yield

    def _is_consistent(self) -> bool:
        """Return whether the ids of the metadata are in the engine and ascend, and the context has the same ids."""
        ids = self.metadata.ids
        if isinstance(self._engine, RescoringEngine) and len(self._engine.codes) != len(self._engine.store):
            return False
        is_ordered = len(ids) == 0 or (ids[0] >= 0 and (np.diff(ids) > 0).all() and ids[-1] < len(self._engine))
        if self._context is None:
            return bool(is_ordered)
        unrefined, fingerprint = self._context.engine, self._context.refiner_fingerprint
        is_same_size = (unrefined.dim, len(unrefined)) == (self.dim, len(self._engine))
        return (
            bool(is_ordered) and is_same_size and unrefined.kind in ("exact", "hnsw") and isinstance(fingerprint, str)
        )

    def _checked_query_ids(self, query_ids: npt.ArrayLike | None, num_queries: int) -> Integers:
        """Return the ids that the queries have in the index, -1 where they have none."""
        if query_ids is None:
            return np.full(num_queries, -1)
        ids = np.asarray(query_ids)
        if self._context is None:
            raise InputError("query_ids are for the refinement of queries; this index is not refined")
        if ids.shape != (num_queries,) or ids.dtype.kind not in "iu" or ids.min(initial=0) < -1:
            raise InputError(
                f"query_ids are {ids.dtype} {list(ids.shape)}; "
                f"give an integer id for each of the {num_queries} queries, -1 for none"
            )
        self.metadata.positions(ids[ids >= 0])
        return ids.astype(np.int64)

    def _check_dim(self, vectors: UnitVectors) -> None:
        if vectors.dim != self.dim:
            raise InputError(
                f"vectors have {vectors.dim} dimensions, the index has {self.dim}; use the model it was built with"
            )
