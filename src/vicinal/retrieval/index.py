"""An index of embeddings to search in, kept in a folder together with what it knows of every image."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from vicinal.data.table import Table
from vicinal.errors import InputError
from vicinal.models.refiner import ContextRefiner
from vicinal.models.saving import check_same_model
from vicinal.retrieval.context import Context
from vicinal.retrieval.items import joined, with_ids
from vicinal.retrieval.refine import refine
from vicinal.retrieval.scores import Array, UnitVectors
from vicinal.retrieval.storage import load_files, save_files
from vicinal.retrieval.structure import Kind, Matches, Structure

Integers = npt.NDArray[np.int64]


class Index:
    """Embeddings, found by cosine similarity, and one row of facts about each.

    An id is the number of vectors that were added before, so it is never used again. Deleted vectors stay in the
    structure, unseen, until an index is built anew: removing them would break the graph of HNSW.

    An index built with a refiner searches refined embeddings. It keeps the embeddings as they came beside them, at 4
    bytes a dimension and image, for among these the neighbours of a new image or of a query are found; they are real
    vectors even beside `ivfpq`, which saves little memory then. Everything that comes in later takes the same refiner.

    Made by :meth:`build` or :meth:`load`.

    Attributes:
        model_fingerprint: says which model the vectors come from, if it was told.

    Example:
        >>> table = Table(pd.DataFrame({"label": ["cat", "dog", "cow"]}))
        >>> index = Index.build(np.eye(3, dtype=np.float32), table)
        >>> index.delete([0])
        >>> matches = index.search(np.array([[0.1, 1.0, 0.2]]), k=2)
        >>> index.lookup(matches.ids[0])["label"].tolist()
        ['dog', 'cow']
    """

    def __init__(
        self,
        structure: Structure,
        items: pd.DataFrame,
        model_fingerprint: str | None = None,
        context: Context | None = None,
    ) -> None:
        self._structure = structure
        self._items = items
        self.model_fingerprint = model_fingerprint
        self._context = context
        self._known_refiner: ContextRefiner | None = None
        self._paths: pd.Series | None = None  # path -> id, made when asked for

    @classmethod
    def build(
        cls,
        vectors: Array,
        table: Table,
        kind: Literal["auto"] | Kind = "auto",
        model_fingerprint: str | None = None,
        refiner: ContextRefiner | None = None,
    ) -> Index:
        """Build an index of all vectors.

        Args:
            vectors: float [n, dim].
            table: n rows; its columns become those of :attr:`items`, a column `id` under the name `id_of_table`.
            kind: `exact` compares with every vector; `hnsw` is a graph, faster and nearly exact above 100,000 vectors;
                `ivfpq` keeps about one byte for four dimensions and gives approximate scores: at some tens of
                dimensions or fewer these are so coarse that many true neighbours are missed, so it is for large
                vectors; `auto` is `exact` up to 100,000 vectors, `hnsw` above.
            model_fingerprint: says which model made the vectors.
            refiner: refines every vector first, by its nearest among the others. These are found by comparing every
                vector with every other, whatever the kind.

        Raises:
            InputError: other numbers of rows, NaN or infinity, too few vectors for `ivfpq`, an unknown kind, a table
                with both columns `id` and `id_of_table`, or a refiner of another dimension or for another model.
        """
        unit = searched = _checked(vectors, table)
        if refiner is not None:
            refiner.check_model(model_fingerprint)
            searched = UnitVectors(refine(refiner, vectors), "refined embedding")
        structure = Structure.made_for(kind, searched)
        context = None if refiner is None else Context.made_for(structure.kind, unit, refiner)
        index = cls(structure, with_ids(table, np.arange(len(unit))), model_fingerprint, context)
        structure.add(searched)
        if context is not None:
            context.embeddings.add(unit)
        return index

    @property
    def kind(self) -> Kind:
        """`exact`, `hnsw` or `ivfpq`."""
        return self._structure.kind

    @property
    def refiner_fingerprint(self) -> str | None:
        """Says which refiner the index was built with; None: embeddings are as they came."""
        return None if self._context is None else self._context.refiner_fingerprint

    @property
    def dim(self) -> int:
        """Dimensions of a vector."""
        return self._structure.dim

    @property
    def items(self) -> pd.DataFrame:
        """A row an image that can be found: `id` and the columns of its table, in the order of ids.

        A table's own column `id` is called `id_of_table`.
        """
        return self._items.copy()

    def fingerprint(self) -> str | None:
        """Of the model that made its vectors and the refiner they went through; None where the model is unknown."""
        refined = "" if self._context is None else f"+{self.refiner_fingerprint}"
        return None if self.model_fingerprint is None else f"{self.model_fingerprint}{refined}"

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        refined = "" if self._context is None else ", refined"
        return f"Index({self.kind}, {len(self)} images, {self.dim} dimensions{refined})"

    def describe(self) -> dict[str, str | int | None]:
        """What the index is and holds, ready for JSON."""
        return {
            "kind": self.kind,
            "images": len(self),
            "dimensions": self.dim,
            "deleted": len(self._structure) - len(self),
            "model_fingerprint": self.model_fingerprint,
            "refiner_fingerprint": self.refiner_fingerprint,
        }

    def check_model(self, fingerprint: str | None) -> None:
        """Refuse another model's vectors, which cannot be compared with these; None is a model nobody knows.

        Raises:
            InputError: both models are known and differ.
        """
        remedy = "use that model, or build the index again"
        check_same_model(self.model_fingerprint, fingerprint, "the index was built with", remedy)

    def check_refiner(self, refiner: ContextRefiner | None) -> None:
        """Refuse any other refiner than the one the index was built with, or one where it was built without.

        Raises:
            InputError: it is another, or there is one too many or too few.
        """
        known = self.refiner_fingerprint
        if refiner is None and known is None:
            return
        if refiner is None:
            raise InputError(f"the index holds embeddings refined by {known}; give that refiner (--refiner)")
        if known is None:
            raise InputError("the index was built without a refiner; leave it out, or build the index again with it")
        if refiner is self._known_refiner:  # a fingerprint reads all weights, which takes longer than a query
            return
        if (fingerprint := refiner.fingerprint()) != known:
            raise InputError(
                f"the index was built with the refiner {known}, not with {fingerprint}; "
                "use that refiner, or build the index again"
            )
        self._known_refiner = refiner

    def add(self, vectors: Array, table: Table, refiner: ContextRefiner | None = None) -> Integers:
        """Add vectors and give their new ids, int64 [n].

        A column that only the index or only the table has is missing in the other's rows. Where one has integers and
        the other text, as of labels read from folders named by digits, both become text.

        A refined index refines each by its nearest among what it holds and the other new ones. What was refined before
        stays as it was, though the new ones may now be nearer: build the index again after adding many.

        Args:
            vectors: float [n, dim].
            table: n rows.
            refiner: the one that the index was built with, if it was built with one.

        Raises:
            InputError: other numbers of rows, another dimension, NaN or infinity, a column of another type than before,
                another refiner.
        """
        self.check_refiner(refiner)
        unit = _checked(vectors, table)
        self._check_dim(unit)
        ids = np.arange(len(self._structure), len(self._structure) + len(unit), dtype=np.int64)
        items = joined(self._items, with_ids(table, ids))
        try:
            if self._context is not None and refiner is not None:
                self._context.embeddings.add(unit)
                unit = self._context.refined(unit, refiner, items["id"].to_numpy(), itself=ids)
        finally:  # even if refining was interrupted, so that ids stay the same in both structures
            self._structure.add(unit)
        self._items, self._paths = items, None
        return ids

    def delete(self, ids: npt.ArrayLike) -> None:
        """Make vectors impossible to find.

        Raises:
            InputError: an id that is not there, or not any more.
        """
        self._items = self._items.drop(index=self._items.index[self._positions(ids)]).reset_index(drop=True)
        self._paths = None

    def ids_of(self, paths: list[str]) -> Integers:
        """The id of the image at each path, int64 [n]: the first where there are several, -1 where there is none."""
        if "path" not in self._items:
            return np.full(len(paths), -1)
        if self._paths is None:
            self._paths = self._items.dropna(subset="path").drop_duplicates("path").set_index("path")["id"]
        return self._paths.reindex(paths, fill_value=-1).to_numpy(dtype=np.int64)

    def vectors(self) -> npt.NDArray[np.float32]:
        """What is searched, float32 [images, dim] in the order of :attr:`items`: unit vectors, refined if the index is.

        Those of `ivfpq` are approximate: it keeps no others.

        Example:
            >>> index = Index.build(2 * np.eye(3, dtype=np.float32), Table(pd.DataFrame(index=range(3))))
            >>> index.delete([0])
            >>> index.vectors()
            array([[0., 1., 0.],
                   [0., 0., 1.]], dtype=float32)
        """
        return self._structure.take(self._items["id"].to_numpy())

    def lookup(self, ids: npt.ArrayLike) -> pd.DataFrame:
        """The rows of :attr:`items` with these ids, in their order.

        Raises:
            InputError: an id that is not there.
        """
        return self._items.iloc[self._positions(ids)].reset_index(drop=True)

    def search(
        self,
        vectors: Array,
        k: int,
        refiner: ContextRefiner | None = None,
        itself: npt.ArrayLike | None = None,
    ) -> Matches:
        """Find the k nearest vectors of each query.

        A refined index refines each query first, by the nearest embeddings it holds. A query that is in the index finds
        its own embedding among these, and moves elsewhere than it did when the index was built, unless `itself` says
        so.

        Args:
            vectors: float [q, dim].
            k: how many.
            refiner: the one that the index was built with, if it was built with one. It is looked at once: do not train
                it on between searches.
            itself: int [q], only with a refiner: the id that a query itself has in the index, whose embedding it then
                does not look at (it may still be found), -1 for none. Duplicates under other ids are looked at.

        Raises:
            InputError: NaN or infinity, another dimension than the index has, k larger than the index, another refiner,
                or an id in `itself` that is not there.
        """
        self.check_refiner(refiner)
        queries = UnitVectors(vectors, "query")
        self._check_dim(queries)
        if not len(self):
            raise InputError("the index is empty; add images before searching")
        if not 1 <= k <= len(self):
            raise InputError(
                f"k = {k} is outside of what an index of {len(self)} images can give; use 1 to {len(self)}"
            )
        own, alive = self._own_ids(itself, len(queries)), self._items["id"].to_numpy()
        if self._context is not None and refiner is not None:
            queries = self._context.refined(queries, refiner, alive, own)
        return self._structure.search(queries, k, alive)

    def save(self, folder: str | Path) -> None:
        """Write the index; a kill at any moment leaves the former one or this one.

        Raises:
            InputError: the folder holds something else.
            OSError: a file cannot be written; the former index is still there.
        """
        if not self._fits_together():
            raise InputError("adding to the index was interrupted; load it again before it is saved")
        config = {
            "kind": self.kind,
            "dim": self.dim,
            "size": len(self),
            "added": len(self._structure),
            "model_fingerprint": self.model_fingerprint,
            "refiner_fingerprint": self.refiner_fingerprint,
        }
        context = None if self._context is None else self._context.embeddings.to_bytes()
        save_files(Path(folder), config, self._structure.to_bytes(), self._items, context)

    @classmethod
    def load(cls, folder: str | Path) -> Index:
        """Read an index that :meth:`save` wrote.

        Raises:
            InputError: no index there, of a later format, or damaged.
        """
        config, data, items, came = load_files(Path(folder))
        try:
            structure = Structure.from_bytes(data)
            context = None if came is None else Context(Structure.from_bytes(came), config["refiner_fingerprint"])
            index = cls(structure, items, config["model_fingerprint"], context)
            expected = tuple(config[fact] for fact in ("kind", "dim", "added", "size"))
        except (InputError, KeyError):
            raise InputError(f"{folder}: the index is damaged; build it again") from None
        if expected != (index.kind, index.dim, len(structure), len(items)) or not index._fits_together():
            raise InputError(f"{folder}: the index is damaged; build it again")
        return index

    def _fits_together(self) -> bool:
        """Whether items have ids of the structure, in their order, and the context has the same."""
        ids = self._items["id"].to_numpy() if "id" in self._items else np.array([-1])
        ordered = len(ids) == 0 or (ids[0] >= 0 and (np.diff(ids) > 0).all() and ids[-1] < len(self._structure))
        if self._context is None:
            return bool(ordered)
        came, known = self._context.embeddings, self._context.refiner_fingerprint
        alike = (came.dim, len(came)) == (self.dim, len(self._structure)) and came.kind != "ivfpq"
        return bool(ordered) and alike and isinstance(known, str)

    def _own_ids(self, itself: npt.ArrayLike | None, queries: int) -> Integers:
        """The ids that queries themselves have, -1 where they have none."""
        if itself is None:
            return np.full(queries, -1)
        own = np.asarray(itself)
        if self._context is None:
            raise InputError("itself says what a query that is refined does not look at; this index is not refined")
        if own.shape != (queries,) or own.dtype.kind not in "iu" or own.min(initial=0) < -1:
            what = f"{own.dtype} {list(own.shape)}"
            raise InputError(f"itself is {what}; give an id for each of the {queries} queries, -1 for none")
        own = own.astype(np.int64)
        self._positions(own[own >= 0])
        return own

    def _positions(self, ids: npt.ArrayLike) -> Integers:
        wanted, known = np.asarray(ids, dtype=np.int64).ravel(), self._items["id"].to_numpy()
        unknown = wanted[~np.isin(wanted, known)]
        if len(unknown):
            raise InputError(f"the index has no id {unknown[0]}; it was never given or is deleted")
        return np.searchsorted(known, wanted).astype(np.int64)

    def _check_dim(self, vectors: UnitVectors) -> None:
        if vectors.dim != self.dim:
            raise InputError(
                f"vectors have {vectors.dim} dimensions, the index has {self.dim}; use the model it was built with"
            )


def _checked(vectors: Array, table: Table) -> UnitVectors:
    unit = UnitVectors(vectors, "vector")
    if len(unit) != len(table):
        raise InputError(f"{len(unit)} vectors, but a table of {len(table)} rows; there must be one row a vector")
    if not len(unit):
        raise InputError("there are no vectors to index; give at least one")
    return unit
