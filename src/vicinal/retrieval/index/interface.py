"""What every index does, whether it is kept in a folder or by a database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from vicinal.data.table import Table
from vicinal.models.refiner import ContextRefiner
from vicinal.retrieval.index.metadata import Metadata
from vicinal.retrieval.index.provenance import IndexProvenance
from vicinal.retrieval.neighbors import Neighbors
from vicinal.retrieval.scores import Array, UnitVectors
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.errors import InputError


class ImageIndex(IndexProvenance, ABC):
    """Embeddings that are searched by cosine similarity, with the columns of their images.

    :class:`~vicinal.Index` keeps them in memory and in a folder, :class:`RemoteIndex` in a database. What does not need
    all images at once needs no memory for all of them.

    Attributes:
        root: the folder of the images; None if it is unknown.
    """

    root: str | None

    @property
    @abstractmethod
    def kind(self) -> str:
        """How it is searched, such as `exact` or `hnsw`."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """Number of dimensions of a vector."""

    @property
    @abstractmethod
    def columns(self) -> list[str]:
        """The names of the columns."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of images."""

    @abstractmethod
    def describe(self) -> dict[str, str | float | None]:
        """Return what the index is and contains, ready for JSON."""

    def _with_provenance(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Facts of an index, where its images are, what made its vectors, and what their scores mean."""
        names = ("score", "threshold", "false_accept_rate") if self.calibration is not None else ()
        calibrated = {f"calibrated {name}": getattr(self.calibration, name) for name in names}
        root = {} if self.root is None else {"root": self.root}
        return {**facts, **root, **self.made_with, **calibrated}

    # changes

    @abstractmethod
    def add(self, vectors: Array, table: Table, refiner: ContextRefiner | None = None) -> Integers:
        """Add vectors with a row each, and return their ids, int64 [n]."""

    @abstractmethod
    def upsert(self, vectors: Array, table: Table, refiner: ContextRefiner | None = None) -> Integers:
        """Add vectors with a row each, in place of those of the same path and bounding box; return their ids."""

    @abstractmethod
    def delete(self, ids: npt.ArrayLike) -> None:
        """Delete images: they are no longer found."""

    @abstractmethod
    def update(self, ids: npt.ArrayLike, table: Table) -> None:
        """Replace the columns of images; their vectors stay."""

    @abstractmethod
    def move(self, root: str | Path) -> None:
        """Say where the images are after their folder was moved."""

    # search

    @abstractmethod
    def search(
        self,
        vectors: Array,
        k: int,
        refiner: ContextRefiner | None = None,
        query_ids: npt.ArrayLike | None = None,
        among: Any = None,
    ) -> Neighbors:
        """Find the k nearest vectors of each query; `among` what :meth:`select` returned, ids, or None for all."""

    @abstractmethod
    def select(self, condition: str | None) -> Any:
        """Return the images whose columns fulfill a condition, for :meth:`search` and :meth:`count`; None: all."""

    @abstractmethod
    def count(self, among: Any = None, at_most: int | None = None) -> int:
        """Return the number of images among these, or `at_most` if there are more."""

    @abstractmethod
    def where(self, condition: str) -> Integers:
        """Return the ids of the images whose columns fulfill a condition, int64 [n], ascending."""

    # rows

    @abstractmethod
    def lookup(self, ids: npt.ArrayLike, skip_unknown: bool = False) -> pd.DataFrame:
        """Return the rows of these ids, in their order: `id` and the columns of the table.

        An unknown id raises InputError, or is left out.
        """

    @abstractmethod
    def ids_by_key(self, keys: Sequence[str]) -> Integers:
        """Return the id of the image of each key, see `Table.image_keys`; -1 where there is none."""

    @abstractmethod
    def ids_at(self, path: str) -> Integers:
        """Return the ids of the images of a file, or of those in a folder and below."""

    @abstractmethod
    def frames(self, condition: str | None = None) -> Iterator[pd.DataFrame]:
        """Yield the rows of all images, or of those that fulfill a condition, in blocks of ascending ids."""

    @abstractmethod
    def blocks(self) -> Iterator[tuple[Integers, Floats]]:
        """Yield ids and vectors, float32 [n, dim], of all images, in blocks of ascending ids."""

    @abstractmethod
    def sample_ids(self, number: int, generator: np.random.Generator) -> Integers:
        """Return the ids of some images that are chosen at random; `number` is at most that of all."""

    @abstractmethod
    def vectors_of(self, ids: Integers) -> Floats:
        """Return the vectors of some ids, float32 [n, dim]."""

    @abstractmethod
    def contents(self) -> tuple[Floats, pd.DataFrame]:
        """Return all vectors and all rows, in ascending order of ids."""

    @abstractmethod
    def rows_near(self, keys: Sequence[str], below: str | None) -> Metadata:
        """Return the rows that are compared with those of a table: of its keys, and of all images in a folder.

        Args:
            keys: what tells the images of the table apart.
            below: the folder; None: all images with a path.
        """

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Keep other threads from changing the index during a block, where that is possible."""
        yield


def checked_vectors(vectors: Array, table: Table) -> UnitVectors:
    """Vectors of length 1 with a row of a table each; raises InputError if there are none, or not as many rows."""
    unit = UnitVectors(vectors, "vector")
    if len(unit) != len(table):
        raise InputError(f"{len(unit)} vectors, but a table of {len(table)} rows; there must be one row per vector")
    if not len(unit):
        raise InputError("there are no vectors to index; give at least one")
    return unit


def check_one_row_per_id(ids: Integers, table: Table) -> None:
    """Raise InputError unless a table has one row per id."""
    if len(ids) != len(table):
        raise InputError(f"{len(ids)} ids, but a table of {len(table)} rows; there must be one row per id")
