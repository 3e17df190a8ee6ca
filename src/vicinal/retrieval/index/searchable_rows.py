"""The rows and the vectors of an index in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from vicinal.retrieval.index.engines.faiss_engine import Kind
from vicinal.retrieval.index.engines.rescoring import Engine, RescoringEngine
from vicinal.retrieval.index.interface import ImageIndex
from vicinal.retrieval.index.metadata import Metadata
from vicinal.retrieval.index.refiner_context import RefinerContext
from vicinal.retrieval.scores import BLOCK_ROWS
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.locks import ReadWriteLock


class SearchableRows(ImageIndex):
    """Vectors in memory, with a row of metadata each, as far as they are read; :class:`SearchableIndex` searches them.

    Args:
        engine: the vectors.
        metadata: one row per image that can be found.
        model_fingerprint: identifies the model that made the vectors; None if it is unknown.
        context: the unrefined embeddings, of an index of refined ones.
        made_with: the flags of the command that made the vectors.
    """

    def __init__(
        self,
        engine: Engine,
        metadata: Metadata,
        model_fingerprint: str | None = None,
        context: RefinerContext | None = None,
        made_with: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(model_fingerprint, context, made_with)
        self._engine = engine
        self.metadata = metadata
        self.root: str | None = None
        self._lock = ReadWriteLock()

    @property
    def kind(self) -> Kind:
        """`exact`, `hnsw`, `sq8`, `ivfpq`, `rabitq` or `binary`."""
        return self._engine.kind

    @property
    def rescore(self) -> int:
        """Number of candidates per neighbor that are compared exactly; 0 for an index that is not searched by codes."""
        return self._engine.rescore if isinstance(self._engine, RescoringEngine) else 0

    @property
    def dim(self) -> int:
        """Number of dimensions of a vector."""
        return self._engine.dim

    @property
    def columns(self) -> list[str]:
        """The names of the columns of `metadata`."""
        return self.metadata.columns

    def __len__(self) -> int:
        return len(self.metadata)

    def __repr__(self) -> str:
        refined = "" if self._context is None else ", refined"
        return f"{type(self).__name__}({self.kind}, {len(self)} images, {self.dim} dimensions{refined})"

    def where(self, condition: str) -> Integers:
        """Return the ids of the images whose columns fulfill a condition, int64 [n].

        Raises:
            InputError: it cannot be parsed, or names an unknown column; see :func:`vicinal.data.matching_rows`.

        Example:
            >>> import pandas as pd
            >>> from vicinal import Index, Table
            >>> index = Index.build(np.eye(2), Table(pd.DataFrame({"price": [12.5, 30.0]})))
            >>> index.where("price < 20")
            array([0])
        """
        return self.metadata.where(condition, self.column_aliases)

    def select(self, condition: str | None) -> Integers | None:
        """Return the ids of the images that fulfill a condition, None for all, as :meth:`where`."""
        return None if condition is None else self.where(condition)

    def count(self, among: npt.ArrayLike | None = None, at_most: int | None = None) -> int:
        """Return the number of images, or of those ids, or `at_most` if there are more."""
        number = len(self) if among is None else len(np.asarray(among))
        return number if at_most is None else min(number, at_most)

    def lookup(self, ids: npt.ArrayLike, skip_unknown: bool = False) -> pd.DataFrame:
        """Return the rows of these ids, in their order; an unknown id raises InputError, or is left out."""
        if not (skip_unknown and len(self)):
            return self.metadata.lookup(ids)
        given, known = np.asarray(ids, dtype=np.int64), self.metadata.ids
        rows = np.minimum(np.searchsorted(known, given), len(known) - 1)
        return self.metadata.lookup(given[known[rows] == given])

    def ids_by_key(self, keys: Sequence[str]) -> Integers:
        """Return the id of the image of each key, -1 where there is none."""
        return self.metadata.ids_by_key(keys)

    def ids_at(self, path: str) -> Integers:
        """Return the ids of the images of a file, or of those in a folder and below."""
        return self.metadata.ids_at(path)

    def frames(self, condition: str | None = None) -> Iterator[pd.DataFrame]:
        """Yield the rows of all images, or of those that fulfill a condition."""
        yield self.metadata.frame if condition is None else self.lookup(self.where(condition))

    def blocks(self) -> Iterator[tuple[Integers, Floats]]:
        """Yield ids and vectors, float32 [n, dim], of all images, in blocks of ascending ids."""
        ids = self.metadata.ids
        for start in range(0, len(ids), BLOCK_ROWS):
            yield ids[start : start + BLOCK_ROWS], self.vectors_of(ids[start : start + BLOCK_ROWS])

    def sample_ids(self, number: int, generator: np.random.Generator) -> Integers:
        """Return the ids of some images that are chosen at random."""
        return generator.choice(self.metadata.ids, number, replace=False)

    def vectors_of(self, ids: Integers) -> Floats:
        """Return the vectors of some ids, float32 [n, dim]."""
        with self._lock.read():
            return self._engine.take(ids)

    def contents(self) -> tuple[Floats, pd.DataFrame]:
        """Return all vectors and all rows, in ascending order of ids."""
        with self._lock.read():
            return self._engine.take(self.metadata.ids), self.metadata.frame

    def rows_near(self, keys: Sequence[str], below: str | None) -> Metadata:
        """Return all rows, which are in memory anyway."""
        return self.metadata

    def vectors(self) -> Floats:
        """Return the vectors that are searched, in the order of `metadata`.

        They are unit vectors, refined if the index is. Where it is searched by codes, they are those that it rescores
        with, float16; without, approximations from the codes.

        Returns:
            float32 [images, dim].

        Example:
            >>> import pandas as pd
            >>> from vicinal import Index, Table
            >>> index = Index.build(2 * np.eye(3, dtype=np.float32), Table(pd.DataFrame(index=range(3))))
            >>> index.delete([0])
            >>> index.vectors()
            array([[0., 1., 0.],
                   [0., 0., 1.]], dtype=float32)
        """
        with self._lock.read():
            return self._engine.take(self.metadata.ids)
