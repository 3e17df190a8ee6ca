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
from typing_extensions import Self

from vicinal.data.columns import column_aliases
from vicinal.data.table import Table
from vicinal.models.refiner import ContextRefiner
from vicinal.retrieval.calibration import Calibration
from vicinal.retrieval.index.made_with import check_same_fingerprint, refiner_flag
from vicinal.retrieval.index.metadata import Metadata
from vicinal.retrieval.neighbors import Neighbors
from vicinal.retrieval.scores import Array, UnitVectors
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.errors import InputError


class ImageIndex(ABC):
    """Embeddings that are searched by cosine similarity, with the columns of their images.

    :class:`~vicinal.Index` keeps them in memory and in a folder, :class:`RemoteIndex` in a database. What does not need
    all images at once needs no memory for all of them.

    Attributes:
        root: the folder of the images; None if it is unknown.
    """

    root: str | None

    def __init__(self) -> None:
        self._verified_refiner: ContextRefiner | None = None

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

    # what made its vectors

    @property
    @abstractmethod
    def model_fingerprint(self) -> str | None:
        """Identifies the model that made the vectors; None if it is unknown."""

    @property
    @abstractmethod
    def made_with(self) -> dict[str, str]:
        """The flags of `vicinal index build` that made the vectors; empty if they are unknown."""

    @property
    def refiner_fingerprint(self) -> str | None:
        """Identifies the refiner that the index was built with; None if embeddings are not refined."""
        return None

    @property
    def calibration(self) -> Calibration | None:
        """What scores of matches mean, see :func:`vicinal.retrieval.match_images`; None if that is not known.

        Raises:
            InputError: when set: it is a calibration of another model.
        """
        return self._stored_calibration()

    @calibration.setter
    def calibration(self, calibration: Calibration | None) -> None:
        if calibration is not None:
            calibration.check_model(self.fingerprint())
        self._keep_calibration(calibration)

    @abstractmethod
    def _stored_calibration(self) -> Calibration | None: ...

    @abstractmethod
    def _keep_calibration(self, calibration: Calibration | None) -> None: ...

    def fingerprint(self) -> str | None:
        """Return what identifies the model and the refiner of its vectors; None where the model is unknown."""
        refined = "" if self.refiner_fingerprint is None else f"+{self.refiner_fingerprint}"
        return None if self.model_fingerprint is None else f"{self.model_fingerprint}{refined}"

    @property
    def column_aliases(self) -> dict[str, str]:
        """What the columns `path` and `label` were called in the table that the index was made of."""
        return column_aliases(self.made_with)

    def check_model(self, fingerprint: str | None, made_with: Mapping[str, str] | None = None) -> None:
        """Refuse vectors of another model, which cannot be compared with these; None is an unknown model.

        Args:
            fingerprint: identifies the model of the vectors, and the steps after it.
            made_with: the flags of the command that made the vectors, without `model` if they were stored.

        Raises:
            InputError: both models are known and differ; the message says by which flags.
        """
        check_same_fingerprint(self.model_fingerprint, fingerprint, self.made_with, made_with or {})

    def check_refiner(self, refiner: ContextRefiner | None) -> None:
        """Refuse any refiner but the one that the index was built with, and none where it was built with one.

        Raises:
            InputError: it is another refiner, or there is one too many or too few.
        """
        expected = self.refiner_fingerprint
        if refiner is None and expected is None:
            return
        if refiner is None:
            raise InputError(
                f"the index holds embeddings refined by {expected}; "
                f"give that refiner{refiner_flag(self.made_with) or ' (--refiner)'}"
            )
        if expected is None:
            raise InputError("the index was built without a refiner; leave it out, or build the index again with it")
        if refiner is self._verified_refiner:  # a fingerprint reads all weights, which takes longer than a query
            return
        if (fingerprint := refiner.fingerprint()) != expected:
            raise InputError(
                f"the index was built with the refiner {expected}{refiner_flag(self.made_with)}, "
                f"not with {fingerprint}; use that refiner, or build the index again"
            )
        self._verified_refiner = refiner

    def _check_dim(self, vectors: UnitVectors) -> None:
        if vectors.dim != self.dim:
            raise InputError(
                f"vectors have {vectors.dim} dimensions, the index has {self.dim}; use the model it was built with"
            )

    # changes

    @abstractmethod
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
            OSError: the changes cannot be written.
        """

    @abstractmethod
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
            >>> from vicinal import Index
            >>> table = Table(pd.DataFrame({"path": ["/a.png", "/b.png"]}))
            >>> index = Index.build(np.eye(2), table)
            >>> index.upsert(np.array([[1.0, 0.0], [1.0, 1.0]]), table)
            array([0, 2])
        """

    @abstractmethod
    def delete(self, ids: npt.ArrayLike) -> None:
        """Delete images: they are no longer found.

        Raises:
            InputError: there is no image with one of the ids.
        """

    @abstractmethod
    def update(self, ids: npt.ArrayLike, table: Table) -> None:
        """Replace the columns of images, such as their prices; their vectors stay.

        Args:
            ids: int [n].
            table: n rows.

        Raises:
            InputError: there is no image with one of the ids, there are not as many rows, or a column has another type
                than in other images.
        """

    @abstractmethod
    def move(self, root: str | Path) -> None:
        """Say where the images are after their folder was moved; the folders below it are as they were.

        The old folder is ``root``; if that is unknown, or no image is in the new one at the same place below, it is
        what precedes the longest ending of a path that exists there. Images elsewhere stay where they are.

        Args:
            root: the folder where they are now.

        Raises:
            InputError: the images have no paths, or none of them is in the folder.
        """

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
            among: what :meth:`select` returned, or the ids that may be found; None: all.

        Returns:
            Scores and ids. Where an approximate search in a database finds fewer than k, though there are more, -1
            stands in place of ids, with a score of minus infinity.

        Raises:
            InputError: a vector contains NaN or infinity or has a different dimension, k is larger than the index, the
                refiner is not the index's, or there is no image with one of the `query_ids`.
        """

    @abstractmethod
    def select(self, condition: str | None) -> Any:
        """Return the images whose columns fulfill a condition, for :meth:`search` and :meth:`count`; None: all."""

    @abstractmethod
    def count(self, among: Any = None, at_most: int | None = None) -> int:
        """Return the number of images among these, or `at_most` if there are more."""

    @abstractmethod
    def where(self, condition: str) -> Integers:
        """Return the ids of the images whose columns fulfill a condition, int64 [n], ascending.

        Raises:
            InputError: it cannot be parsed, or names an unknown column; see :func:`vicinal.data.matching_rows`.

        Example:
            >>> import pandas as pd
            >>> from vicinal import Index, Table
            >>> index = Index.build(np.eye(2), Table(pd.DataFrame({"price": [12.5, 30.0]})))
            >>> index.where("price < 20")
            array([0])
        """

    # rows

    @property
    def metadata(self) -> Metadata:
        """All rows; they are read whenever this is asked for."""
        frames = list(self.frames())
        return Metadata(pd.concat(frames, ignore_index=True) if frames else self.lookup(np.empty(0, np.int64)))

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

    @abstractmethod
    def close(self) -> None:
        """Close files and connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
