"""The interface of every index, in a folder or in a database."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from typing_extensions import Self

from vicinal.data.column_kinds import Kinds
from vicinal.data.columns import column_aliases
from vicinal.data.moved import find_old_root, moved_path
from vicinal.data.table import Table
from vicinal.models.refiner import ContextRefiner
from vicinal.retrieval.calibration import Calibration
from vicinal.retrieval.index.kinds import Kind
from vicinal.retrieval.index.made_with import fingerprint_of, model_mismatch_error, refiner_flag
from vicinal.retrieval.index.metadata import MAX_ID, Metadata
from vicinal.retrieval.neighbors import Neighbors
from vicinal.retrieval.scores import Array, UnitVectors
from vicinal.utils.arguments import is_integer
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.errors import InputError


class ImageIndex(ABC):
    """Embeddings that are searched by cosine similarity, with the columns of their images.

    :class:`~vicinal.Index` keeps them in memory and in a folder, :class:`RemoteIndex` in a database. Operations that
    do not need all images at once do not load all of them.
    """

    def __init__(self) -> None:
        self._verified_refiner: tuple[ContextRefiner, str] | None = None

    @property
    @abstractmethod
    def _settings(self) -> Mapping[str, Any]:
        """The settings of the index, as values of JSON."""

    @abstractmethod
    def _change_settings(self, **settings: Any) -> None:
        """Change settings; None removes one."""

    @property
    def kind(self) -> Kind:
        """How it is searched, such as `exact` or `hnsw`."""
        return self._settings["kind"]

    @property
    def dim(self) -> int:
        """Number of dimensions of a vector."""
        return int(self._settings["dim"])

    @property
    def rescore(self) -> int:
        """Number of candidates per neighbor that are compared exactly; 0 for an index that is not searched by codes."""
        return self._settings.get("rescore") or 0

    @property
    def root(self) -> str | None:
        """The folder of the images, which :meth:`move` changes; None if it is unknown."""
        return self._settings.get("root")

    @root.setter
    def root(self, root: str | None) -> None:
        self._change_settings(root=root)

    @property
    @abstractmethod
    def column_kinds(self) -> Kinds:
        """The kinds of the columns by their names."""

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return ["id", *self.column_kinds]

    @abstractmethod
    def __len__(self) -> int:
        """Number of images."""

    def describe(self) -> dict[str, str | float | None]:
        """Return kind, size, root and origin of the index, ready for JSON."""
        rescore = {"rescore": self.rescore} if self.rescore else {}
        facts = {"kind": self.kind, **rescore, "images": len(self), "dimensions": self.dim, **self._further_facts()}
        names = ("score", "threshold", "false_accept_rate") if self.calibration is not None else ()
        calibrated = {f"calibrated {name}": getattr(self.calibration, name) for name in names}
        root = {} if self.root is None else {"root": self.root}
        local = {}
        if (settings := self.local_settings) is not None:
            grid = "{} x {}".format(*settings["grid"])
            local["local features"] = f"{grid} patches of {settings['dim']} bytes, weight {settings['weight']:g}"
        return {**facts, "model_fingerprint": self.model_fingerprint, **root, **self.made_with, **calibrated, **local}

    @abstractmethod
    def _further_facts(self) -> dict[str, Any]: ...

    # the model of its vectors

    @property
    def model_fingerprint(self) -> str | None:
        """Identifies the model that made the vectors; None if it is unknown."""
        return self._settings.get("model_fingerprint")

    @property
    def made_with(self) -> dict[str, str]:
        """The flags of `vicinal index build` that made the vectors; empty if they are unknown."""
        return dict(self._settings.get("made_with") or {})

    @property
    def refiner_fingerprint(self) -> str | None:
        """Identifies the refiner that the index was built with; None if embeddings are not refined."""
        return self._settings.get("refiner_fingerprint")

    @property
    def calibration(self) -> Calibration | None:
        """The calibration of match scores, see :func:`vicinal.retrieval.match_images`; None without one.

        Raises:
            InputError: when set: it is a calibration of another model.
        """
        stored = self._settings.get("calibration")
        return None if stored is None else Calibration.from_dict(stored)

    @calibration.setter
    def calibration(self, calibration: Calibration | None) -> None:
        if calibration is not None:
            calibration.check_model(self.fingerprint())
        self._change_settings(calibration=None if calibration is None else calibration.to_dict())

    @property
    def match_calibration(self) -> Calibration | None:
        """The calibration if it is about single matches; None without one, or where it is about pooled identities."""
        calibration = self.calibration
        return None if calibration is None or calibration.pooling != "best" else calibration

    @property
    def unsure(self) -> list[str]:
        """The keys (`Table.image_keys`) of images whose identity is not sure; they are not in the index."""
        return list(self._settings.get("unsure") or ())

    @unsure.setter
    def unsure(self, keys: Collection[str]) -> None:
        self._change_settings(unsure=sorted(set(keys)) or None)

    def fingerprint(self) -> str | None:
        """Return a text that identifies the model and the refiner of its vectors; None where the model is unknown."""
        return fingerprint_of(self._settings)

    @property
    def column_aliases(self) -> dict[str, str]:
        """The names of the columns `path` and `label` in the table that the index was made of."""
        return column_aliases(self.made_with)

    def check_model(self, fingerprint: str | None, made_with: Mapping[str, str] | None = None) -> None:
        """Refuse vectors of another model, which cannot be compared with these; None is an unknown model.

        Args:
            fingerprint: identifies the model of the vectors, and the steps after it.
            made_with: the flags of the command that made the vectors, without `model` if they were stored.

        Raises:
            InputError: both models are known and differ; the message says by which flags.
        """
        expected = self.model_fingerprint
        if expected is not None and fingerprint is not None and expected != fingerprint:
            raise model_mismatch_error(expected, fingerprint, self.made_with, made_with or {})

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
        known, verified = self._verified_refiner or (None, None)
        if refiner is known and expected == verified:  # a fingerprint reads all weights, which takes long
            return
        if (fingerprint := refiner.fingerprint()) != expected:
            raise InputError(
                f"the index was built with the refiner {expected}{refiner_flag(self.made_with)}, "
                f"not with {fingerprint}; use that refiner, or build the index again"
            )
        self._verified_refiner = refiner, expected

    def _checked(self, vectors: Array, table: Table, refiner: ContextRefiner | None) -> UnitVectors:
        """Vectors of length 1 that may be added with the rows of a table."""
        self.check_refiner(refiner)
        unit = checked_vectors(vectors, table)
        self._check_dim(unit)
        return unit

    def _check_dim(self, vectors: UnitVectors) -> None:
        if vectors.dim != self.dim:
            raise InputError(
                f"vectors have {vectors.dim} dimensions, the index has {self.dim}; use the model it was built with"
            )

    # changes

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
        return self._add(self._checked(vectors, table, refiner), table, refiner)

    @abstractmethod
    def _add(self, unit: UnitVectors, table: Table, refiner: ContextRefiner | None) -> Integers: ...

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
        return self._upsert(self._checked(vectors, table, refiner), table, refiner)

    @abstractmethod
    def _upsert(self, unit: UnitVectors, table: Table, refiner: ContextRefiner | None) -> Integers: ...

    @abstractmethod
    def delete(self, ids: npt.ArrayLike) -> None:
        """Delete images: they are no longer found.

        Raises:
            InputError: an id does not exist.
        """

    def update(self, ids: npt.ArrayLike, table: Table) -> None:
        """Replace the columns of images, such as their prices; their vectors stay.

        Args:
            ids: int [n].
            table: n rows.

        Raises:
            InputError: an id does not exist, the table has another number of rows, or a column has another type
                than in other images.
        """
        given = checked_ids(ids)
        if len(given) != len(table):
            raise InputError(f"{len(given)} ids, but a table of {len(table)} rows; there must be one row per id")
        self._update(given, table)

    @abstractmethod
    def _update(self, ids: Integers, table: Table) -> None: ...

    def move(self, root: str | Path) -> None:
        """Say where the images are after their folder was moved; the folders below it are as they were.

        The old folder is ``root``. If that is unknown, or no image has the same relative path in the new folder, it is
        the part of a path before its longest ending that exists there. Images elsewhere keep their paths.

        Args:
            root: the folder where they are now.

        Raises:
            InputError: the images have no paths, or none of them is in the folder.
        """
        new = os.path.abspath(root)
        with self.transaction():
            paths = self._some_paths()
            if not paths:
                raise InputError("the images of the index have no paths, so there is nothing to move")
            old = find_old_root(paths, new, self.root)
            self._move(old, new)
            self.root = new if self.root is None else moved_path(self.root, old, new)

    @abstractmethod
    def _some_paths(self) -> list[str]:
        """Enough paths of images to tell where they were."""

    @abstractmethod
    def _move(self, old: str, new: str) -> None:
        """Replace the folder at the beginning of paths."""

    # search

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
                refiner is not the index's, or one of the `query_ids` does not exist.
        """
        self.check_refiner(refiner)
        queries = UnitVectors(vectors, "query")
        self._check_dim(queries)
        return self._search(queries, k, refiner, query_ids, among)

    @abstractmethod
    def _search(
        self, queries: UnitVectors, k: int, refiner: ContextRefiner | None, query_ids: npt.ArrayLike | None, among: Any
    ) -> Neighbors: ...

    def select(self, condition: str | None) -> Any:
        """Return the images whose columns fulfill a condition, for :meth:`search` and :meth:`count`; None: all."""
        return None if condition is None else self.where(condition)

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
        """All rows, read anew at each access."""
        return Metadata(pd.concat(list(self.frames()), ignore_index=True))

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
        """Yield the rows of all images, or of those that fulfill a condition, in blocks of ascending ids.

        An empty index yields one block that has the columns but no rows.
        """

    @abstractmethod
    def blocks(self) -> Iterator[tuple[Integers, Floats]]:
        """Yield ids and vectors, float32 [n, dim], of all images, in blocks of ascending ids."""

    @abstractmethod
    def sample_ids(self, number: int, generator: np.random.Generator) -> Integers:
        """Return the ids of `number` random images, at most the number of all."""

    @abstractmethod
    def vectors_of(self, ids: Integers) -> Floats:
        """Return the vectors of some ids, float32 [n, dim]."""

    @abstractmethod
    def local_codes(self, ids: Integers) -> dict[int, bytes]:
        """Return the stored codes of local features of those ids that have some, see `vicinal index build --local`."""

    @abstractmethod
    def store_local_codes(self, settings: Mapping[str, Any]) -> None:
        """Make room for codes of local features that are computed with these settings; earlier codes are deleted.

        Raises:
            InputError: the index is in a database that stores none.
        """

    @abstractmethod
    def add_local_codes(self, ids: Integers, codes: Sequence[bytes], settings: Mapping[str, Any] | None = None) -> None:
        """Store codes of local features; those of images that were deleted meanwhile are left out.

        Args:
            ids: int64 [n].
            codes: n, one for each id.
            settings: those that they were computed with; None: those of the index.
        """

    @abstractmethod
    def ids_without_local_codes(self, settings: Mapping[str, Any] | None = None) -> Integers:
        """Return the ids of the images whose local features are not stored, int64 [n], ascending.

        Args:
            settings: by which they would be computed; None: those of the index.
        """

    @property
    def local_settings(self) -> dict[str, Any] | None:
        """How the local features that the index stores are computed; None without any."""
        return self._settings.get("local_features")

    @abstractmethod
    def present(self, ids: npt.ArrayLike) -> Integers:
        """Return the given ids that exist, without duplicates, ascending."""

    @abstractmethod
    def vectors(self) -> Floats:
        """Return the vectors that are searched, in ascending order of ids.

        They are unit vectors, refined if the index is. Of an index that is searched by codes, they are the float16
        vectors that it rescores with or, without rescoring, approximations from the codes.

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

    @abstractmethod
    def contents(self) -> tuple[Floats, pd.DataFrame]:
        """Return all vectors and all rows, in ascending order of ids."""

    def rows_near(self, keys: Sequence[str], below: str | None) -> Metadata:
        """Return the rows that are compared with those of a table: of its keys, and of all images in a folder.

        Args:
            keys: identify the images of the table.
            below: the folder; None: all images with a path.
        """
        return self.metadata

    @abstractmethod
    def close(self) -> None:
        """Close files and connections."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def transaction(self) -> AbstractContextManager[None]:
        """A block whose changes are made together at its end, or none if it fails; in Milvus each is made at once.

        Raises:
            InputError: another process still writes the index after the timeout.
            OSError: the changes cannot be written, or the connection to a database is lost.
        """
        return nullcontext()

    def reading(self) -> AbstractContextManager[None]:
        """See the index during a block as it is at its beginning, where that is possible."""
        return nullcontext()

    def without_changes(self) -> AbstractContextManager[Any]:
        """Keep other threads of this process from changing the index during a block, where that is possible."""
        return nullcontext()


def checked_vectors(vectors: Array, table: Table) -> UnitVectors:
    """Vectors of length 1 with a row of a table each; raises InputError if there are none, or not as many rows."""
    unit = UnitVectors(vectors, "vector")
    if len(unit) != len(table):
        raise InputError(f"{len(unit)} vectors, but a table of {len(table)} rows; there must be one row per vector")
    if not len(unit):
        raise InputError("no vectors to index; give at least one")
    return unit


def checked_ids(ids: npt.ArrayLike) -> Integers:
    """Return ids as int64 [n]; raises InputError if one cannot be an id."""
    if isinstance(ids, np.ndarray) and ids.dtype == np.int64 and ids.min(initial=0) >= 0:
        return ids.ravel()
    # NumPy would make floats of a list with an integer beyond 64 bits
    given = np.asarray(ids, None if hasattr(ids, "dtype") else object).ravel().tolist()
    for value in given:
        if not is_integer(value):
            raise InputError(f"id {value!r} is not an integer")
        if not 0 <= value <= MAX_ID:
            raise unknown_id_error(value)
    return np.array(given, dtype=np.int64)


def unknown_id_error(number: object) -> InputError:
    """The error of an id that no image has."""
    return InputError(f"the index has no id {number}; it was never assigned or is deleted")


def invalid_k_error(k: object, number: int, is_selection: bool) -> InputError:
    """The error of a search for an impossible number of neighbors."""
    if not number and not is_selection:
        return InputError("the index is empty; add images before searching")
    place = f"{number} images to search among" if is_selection else f"an index of {number} images"
    return InputError(f"k = {k} is invalid in {place}; use 1 to {number}")
