"""An index of embeddings to search in, kept in a folder together with what it knows of every image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import faiss as faiss_with_stubs
import numpy as np
import numpy.typing as npt
import pandas as pd
from pandas.api.extensions import ExtensionDtype

from vicinal.data.table import Table
from vicinal.errors import InputError
from vicinal.retrieval.scores import BLOCK_ROWS, Array, UnitVectors
from vicinal.retrieval.storage import load_files, save_files

faiss: Any = faiss_with_stubs  # its type stubs lack the Python-side arguments of most classes

Kind = Literal["exact", "hnsw", "ivfpq"]

EXACT_UP_TO = 100_000  # vectors; above, "auto" takes HNSW, as comparing with every vector becomes slow
HNSW_LINKS = 32  # a vector
HNSW_BUILD, HNSW_SEARCH = 100, 128  # breadth of the search while building and while searching
IVFPQ_CODES, IVFPQ_PROBES = 256, 32  # values of one code byte, inverted lists visited
IVFPQ_LEAST = 39 * IVFPQ_CODES  # vectors to train on; faiss's own advice is 39 a centroid
CLASSES = {"exact": faiss.IndexFlat, "hnsw": faiss.IndexHNSW, "ivfpq": faiss.IndexIVFPQ}
OWN_ID = "id_of_table"  # what a table's own column `id` is called in the index
# for columns that would else become floats or objects where values are missing
NULLABLE: dict[str, ExtensionDtype] = {"b": pd.BooleanDtype(), "i": pd.Int64Dtype(), "u": pd.UInt64Dtype()}

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Matches:
    """What a search found, best first.

    Attributes:
        scores: float32 [queries, k], cosine similarities (approximate ones from an `ivfpq` index).
        ids: int64 [queries, k]; equal scores stand in the order of their ids.
    """

    scores: npt.NDArray[np.float32]
    ids: Integers


class Index:
    """Embeddings, found by cosine similarity, and one row of facts about each.

    An id is the number of vectors that were added before, so it is never used again. Deleted vectors stay in the
    structure, unseen, until an index is built anew: removing them would break the graph of HNSW.

    Made by :meth:`build` or :meth:`load`.

    Attributes:
        kind: `exact`, `hnsw` or `ivfpq`.
        model_fingerprint: says which model the vectors come from, if it was told.

    Example:
        >>> table = Table(pd.DataFrame({"label": ["cat", "dog", "cow"]}))
        >>> index = Index.build(np.eye(3, dtype=np.float32), table)
        >>> index.delete([0])
        >>> matches = index.search(np.array([[0.1, 1.0, 0.2]]), k=2)
        >>> index.lookup(matches.ids[0])["label"].tolist()
        ['dog', 'cow']
    """

    def __init__(self, structure: Any, items: pd.DataFrame, kind: Kind, model_fingerprint: str | None = None) -> None:
        self._structure = structure
        self._items = items
        self.kind: Kind = kind
        self.model_fingerprint = model_fingerprint

    @classmethod
    def build(
        cls,
        vectors: Array,
        table: Table,
        kind: Literal["auto"] | Kind = "auto",
        model_fingerprint: str | None = None,
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

        Raises:
            InputError: other numbers of rows, NaN or infinity, too few vectors for `ivfpq`, an unknown kind, or a
                table with both columns `id` and `id_of_table`.
        """
        unit = _checked(vectors, table)
        if kind == "auto":
            kind = "exact" if len(unit) <= EXACT_UP_TO else "hnsw"
        if kind not in ("exact", "hnsw", "ivfpq"):
            raise InputError(f"unknown kind of index {kind!r}; use auto, exact, hnsw or ivfpq")
        index = cls(_structure(kind, unit), pd.DataFrame({"id": np.empty(0, dtype=np.int64)}), kind, model_fingerprint)
        index._append(unit, table)
        return index

    @property
    def dim(self) -> int:
        """Dimensions of a vector."""
        return int(self._structure.d)

    @property
    def items(self) -> pd.DataFrame:
        """A row an image that can be found: `id` and the columns of its table, in the order of ids.

        A table's own column `id` is called `id_of_table`.
        """
        return self._items.copy()

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"Index({self.kind}, {len(self)} images, {self.dim} dimensions)"

    def describe(self) -> dict[str, str | int | None]:
        """What the index is and holds, ready for JSON."""
        return {
            "kind": self.kind,
            "images": len(self),
            "dimensions": self.dim,
            "deleted": int(self._structure.ntotal) - len(self),
            "model_fingerprint": self.model_fingerprint,
        }

    def check_model(self, fingerprint: str | None) -> None:
        """Refuse another model's vectors, which cannot be compared with these; None is a model nobody knows.

        Raises:
            InputError: both models are known and differ.
        """
        if None not in (fingerprint, self.model_fingerprint) and fingerprint != self.model_fingerprint:
            raise InputError(
                f"the index was built with the model {self.model_fingerprint}, not with {fingerprint}; "
                "use that model, or build the index again"
            )

    def add(self, vectors: Array, table: Table) -> Integers:
        """Add vectors and give their new ids, int64 [n].

        A column that only the index or only the table has is missing in the other's rows. Where one has integers and
        the other text, as of labels read from folders named by digits, both become text.

        Raises:
            InputError: other numbers of rows, another dimension, NaN or infinity, a column of another type than before.
        """
        unit = _checked(vectors, table)
        self._check_dim(unit)
        return self._append(unit, table)

    def delete(self, ids: npt.ArrayLike) -> None:
        """Make vectors impossible to find.

        Raises:
            InputError: an id that is not there, or not any more.
        """
        self._items = self._items.drop(index=self._items.index[self._positions(ids)]).reset_index(drop=True)

    def lookup(self, ids: npt.ArrayLike) -> pd.DataFrame:
        """The rows of :attr:`items` with these ids, in their order.

        Raises:
            InputError: an id that is not there.
        """
        return self._items.iloc[self._positions(ids)].reset_index(drop=True)

    def search(self, vectors: Array, k: int) -> Matches:
        """Find the k nearest vectors of each query.

        Args:
            vectors: float [q, dim].
            k: how many.

        Raises:
            InputError: NaN or infinity, another dimension than the index has, or k larger than the index.
        """
        queries = UnitVectors(vectors, "query")
        self._check_dim(queries)
        if not len(self):
            raise InputError("the index is empty; add images before searching")
        if not 1 <= k <= len(self):
            raise InputError(
                f"k = {k} is outside of what an index of {len(self)} images can give; use 1 to {len(self)}"
            )
        scores, ids = np.empty((len(queries), k), np.float32), np.empty((len(queries), k), np.int64)
        for start in range(0, len(queries), BLOCK_ROWS):
            stop = min(start + BLOCK_ROWS, len(queries))
            scores[start:stop], ids[start:stop] = self._search(_rows(queries, start, stop), k)
        order = np.lexsort((ids, -scores))
        return Matches(np.take_along_axis(scores, order, axis=1), np.take_along_axis(ids, order, axis=1))

    def save(self, folder: str | Path) -> None:
        """Write the index; a kill at any moment leaves the former one or this one.

        Raises:
            InputError: the folder holds something else.
            OSError: a file cannot be written; the former index is still there.
        """
        config = {
            "kind": self.kind,
            "dim": self.dim,
            "size": len(self),
            "added": int(self._structure.ntotal),
            "model_fingerprint": self.model_fingerprint,
        }
        save_files(Path(folder), config, faiss.serialize_index(self._structure).tobytes(), self._items)

    @classmethod
    def load(cls, folder: str | Path) -> Index:
        """Read an index that :meth:`save` wrote.

        Raises:
            InputError: no index there, of a later format, or damaged.
        """
        config, data, items = load_files(Path(folder))
        damaged = InputError(f"{folder}: the index is damaged; build it again")
        try:
            structure = faiss.deserialize_index(np.frombuffer(data, dtype=np.uint8))
            fits = isinstance(structure, CLASSES[str(config["kind"])])
            index = cls(structure, items, config["kind"], config["model_fingerprint"])
            expected = (config["dim"], config["added"], config["size"])
        except (RuntimeError, KeyError):
            raise damaged from None
        ids = items["id"].to_numpy() if "id" in items else np.array([-1])
        ordered = len(ids) == 0 or (ids[0] >= 0 and (np.diff(ids) > 0).all() and ids[-1] < structure.ntotal)
        if expected != (structure.d, structure.ntotal, len(items)) or not ordered or not fits:
            raise damaged
        return index

    def _append(self, vectors: UnitVectors, table: Table) -> Integers:
        ids = np.arange(self._structure.ntotal, self._structure.ntotal + len(vectors), dtype=np.int64)
        new = _with_ids(table, ids)
        items = new if not self._structure.ntotal else _joined(self._items, new)
        for start in range(0, len(vectors), BLOCK_ROWS):
            self._structure.add(_rows(vectors, start, start + BLOCK_ROWS))
        self._items = items
        return ids

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

    def _search(self, queries: npt.NDArray[np.float32], k: int) -> tuple[npt.NDArray[np.float32], Integers]:
        """Search quickly, and again with all breadth where that found fewer than k."""
        scores, ids = _search(self._structure, queries, k, self._parameters(k, exhaustive=False))
        short = np.flatnonzero((ids < 0).any(axis=1))
        if len(short):
            structure = self._structure.storage if self.kind == "hnsw" else self._structure
            parameters = self._parameters(k, exhaustive=True)
            scores[short], ids[short] = _search(structure, queries[short], k, parameters)
        return scores, ids

    def _parameters(self, k: int, exhaustive: bool) -> Any:
        alive = np.zeros(self._structure.ntotal, dtype=bool)
        alive[self._items["id"].to_numpy()] = True
        selector = None if alive.all() else faiss.IDSelectorBitmap(np.packbits(alive, bitorder="little"))
        if self.kind == "exact" or (self.kind == "hnsw" and exhaustive):
            return faiss.SearchParameters(sel=selector)
        if self.kind == "hnsw":
            return faiss.SearchParametersHNSW(efSearch=max(HNSW_SEARCH, 2 * k), sel=selector)
        lists = self._structure.nlist
        return faiss.SearchParametersIVF(nprobe=lists if exhaustive else min(lists, IVFPQ_PROBES), sel=selector)


def _checked(vectors: Array, table: Table) -> UnitVectors:
    unit = UnitVectors(vectors, "vector")
    if len(unit) != len(table):
        raise InputError(f"{len(unit)} vectors, but a table of {len(table)} rows; there must be one row a vector")
    if not len(unit):
        raise InputError("there are no vectors to index; give at least one")
    return unit


def _rows(vectors: UnitVectors, start: int, stop: int) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(vectors.block(start, stop).cpu().numpy())


def _search(
    structure: Any, queries: npt.NDArray[np.float32], k: int, parameters: Any
) -> tuple[npt.NDArray[np.float32], Integers]:
    """Search by faiss's own method, which `faiss.contrib.torch_utils` (other libraries import it) renames."""
    search = getattr(structure, "search_numpy", structure.search)
    return search(queries, k, params=parameters)


def _structure(kind: Kind, vectors: UnitVectors) -> Any:
    """An empty faiss index of the kind, trained if it needs to be."""
    if kind == "exact":
        return faiss.IndexFlatIP(vectors.dim)
    if kind == "hnsw":
        graph = faiss.IndexHNSWFlat(vectors.dim, HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = HNSW_BUILD
        return graph
    return _trained_ivfpq(vectors)


def _trained_ivfpq(vectors: UnitVectors) -> Any:
    count, dim = len(vectors), vectors.dim
    if count < IVFPQ_LEAST:
        raise InputError(f"an ivfpq index needs {IVFPQ_LEAST:,} vectors to train on, got {count:,}; use exact or hnsw")
    code_bytes = next(size for size in range(max(dim // 4, 1), 0, -1) if dim % size == 0)
    lists = int(min(4 * np.sqrt(count), count / 39))
    structure = faiss.index_factory(dim, f"IVF{lists},PQ{code_bytes}x8", faiss.METRIC_INNER_PRODUCT)
    # k-means looks at no more than 256 vectors a centroid; they are spread over the whole table
    wanted = min(count, 256 * max(lists, IVFPQ_CODES))
    sample = np.linspace(0, count - 1, wanted).astype(np.int64)
    structure.train(vectors.take(sample).cpu().numpy())
    return structure


def _with_ids(table: Table, ids: Integers) -> pd.DataFrame:
    if table.has("id") and table.has(OWN_ID):
        raise InputError(f"the table has both columns 'id' and {OWN_ID!r}, as which 'id' would be kept; drop one")
    frame = table.frame.rename(columns={"id": OWN_ID})
    frame.insert(0, "id", ids)
    return frame


def _joined(old: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    """Both below each other; a column that one of them lacks is missing there."""
    shared = old.columns.intersection(new.columns).drop("id")
    pairs = {column: _alike(column, old[column], new[column]) for column in shared}
    old = old.assign(**{column: pair[0] for column, pair in pairs.items()})
    new = new.assign(**{column: pair[1] for column, pair in pairs.items()})
    parts = [
        mine.assign(**{column: _nullable(mine[column]) for column in mine.columns.difference(other.columns)})
        for mine, other in ((old, new), (new, old))
    ]
    return pd.concat(parts, ignore_index=True)


def _alike(column: str, old: pd.Series, new: pd.Series) -> tuple[pd.Series, pd.Series]:
    """Both parts of a column in types that can be joined."""
    kinds = _kind(old), _kind(new)
    if kinds[0] == "empty":
        return old.astype(_nullable(new).dtype), new
    if kinds[1] == "empty":
        return old, new.astype(_nullable(old).dtype)
    if set(kinds) == {"integer", "string"}:
        return _text(old), _text(new)
    if kinds[0] != kinds[1] and set(kinds) != {"integer", "floating"}:
        raise InputError(
            f"column {column!r} is {kinds[1]} in the new rows, {kinds[0]} in the index; it must be alike in both"
        )
    return old, new


def _kind(column: pd.Series) -> str:
    """What the values are: integer, floating, boolean, string, ..., or empty where all are missing."""
    return pd.api.types.infer_dtype(column.dropna().astype(object))


def _nullable(column: pd.Series) -> pd.Series:
    return column.astype(NULLABLE[column.dtype.kind]) if column.dtype.kind in NULLABLE else column


def _text(column: pd.Series) -> pd.Series:
    return column.map(str, na_action="ignore").astype("str")
