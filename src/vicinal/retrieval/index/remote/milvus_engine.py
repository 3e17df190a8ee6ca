"""Indexes in collections of Milvus: a vector and a JSON field with the columns per image.

The name of an index is an alias of its collection, which a rebuilt index changes in one step. Facts are kept under the
name of the collection, so that they change in the same step. Each column is a fact of its own, so that writers who add
columns at the same time lose none.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from vicinal.data.column_kinds import ColumnKind, Kinds, number_of
from vicinal.data.condition_syntax import Condition
from vicinal.retrieval.index.kinds import HNSW_BUILD, HNSW_LINKS, HNSW_SEARCH, IVF_PROBES, Kind, product_code_bytes
from vicinal.retrieval.index.metadata import Record
from vicinal.retrieval.index.remote.engine_url import EngineURL
from vicinal.retrieval.index.remote.milvus_filters import COLUMNS, NUMBER, MilvusWriter, column_key, path_expression
from vicinal.retrieval.index.remote.remote_engine import (
    CONNECT_SECONDS,
    MAX_BATCH,
    REQUEST_SECONDS,
    Missing,
    RemoteEngine,
    Rows,
    StaleGenerationError,
    TransientFault,
    sorted_neighbors,
)
from vicinal.retrieval.neighbors import Neighbors
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.errors import EngineRefusedError, InputError, import_extra, one_line

pymilvus = import_extra("pymilvus", "milvus", "an index in Milvus")

import grpc  # noqa: E402  (a dependency of pymilvus)

TOKEN = "VICINAL_MILVUS_TOKEN"  # the environment variable with the credentials
FACTS = "vicinal_indexes"  # the collection with the facts of all indexes
VECTOR, OWNER = "embedding", "collection"  # the owner of a column
TYPES = {"exact": "FLAT", "hnsw": "HNSW", "sq8": "IVF_SQ8", "ivfpq": "IVF_PQ", "rabitq": "IVF_RABITQ"}
LISTS = 1024  # inverted lists per segment
MAX_DIM = 32_768
MAX_RESULTS = 100_000  # of one request
NOT_LOADED, NOT_FOUND = 101, (4, 100)  # codes of errors
TRANSIENT_CODES = (2, 8)  # service unavailable, too many requests
TRANSIENT_WORDS = ("fail connecting", "retry timeout", "retry run out", "not ready", "unavailable", "recovering")
TRANSIENT_STATES = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)
REFUSED_STATES = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


class MilvusEngine(RemoteEngine):
    name: ClassVar[str] = "milvus"
    kinds: ClassVar[tuple[Kind, ...]] = ("exact", "hnsw", "sq8", "ivfpq", "rabitq")
    max_k: ClassVar[int] = 16_384

    def __init__(self, url: EngineURL, timeout: float) -> None:
        super().__init__(url, timeout)
        logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it logs every fault with a traceback
        self._token = os.environ.get(TOKEN, "")
        self._seconds = min(REQUEST_SECONDS, max(timeout, 1.0))  # per request, in which pymilvus tries again itself
        self._client: Any = None
        self._is_lite: bool | None = None
        self._lock = threading.Lock()
        self._new_names: dict[str, str] = {}  # of collections that are about to replace others
        self._source: str | None = None  # the collection of the generation that is upgraded
        self._is_switched = False  # whether the generation of this engine is searched since :meth:`switch`
        self._opened: dict[str | None, str] = {}  # the collections that generations were found in
        self._columns: dict[str, dict[str, Any]] = {}  # of collections, as they were read or written last

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    # the tables

    def read_facts(self, table: str) -> dict[str, Any] | None:
        with self._translate_errors() as client:
            collection = self._collection(client, table)
        return None if collection is None else self._stored_facts(collection)

    def _collection(self, client: Any, table: str) -> str | None:
        """The collection that a name or an alias means; None if there is none."""
        if not client.has_collection(table, timeout=self._seconds):
            return None
        return str(client.describe_collection(table, timeout=self._seconds)["collection_name"])

    def _stored_facts(self, collection: str) -> dict[str, Any] | None:
        """The facts under the name of a collection, whether it exists or not."""
        with self._translate_errors(FACTS) as client:
            if not client.has_collection(FACTS, timeout=self._seconds):
                return None
            found = [row["facts"] for row in self._query(client, FACTS, _facts_filter(collection), ["facts"])]
        columns = sorted((each for each in found if OWNER in each), key=lambda each: (each["position"], each["column"]))
        self._columns[collection] = {each["column"]: dict(each["kind"]) for each in columns}
        own = next((each for each in found if OWNER not in each), None)
        return None if own is None else {**own, "columns": dict(self._columns[collection])}

    def write_facts(self, table: str, facts: Mapping[str, Any]) -> None:
        with self._translate_errors() as client:
            collection = self._collection(client, table) or table
        self._store_facts(collection, facts)

    def _store_facts(self, collection: str, facts: Mapping[str, Any]) -> None:
        before = self._columns.get(collection, {})
        rows = [{"name": collection, "facts": {name: value for name, value in facts.items() if name != "columns"}}]
        for position, (name, kind) in enumerate(facts["columns"].items()):
            if before.get(name) != kind:  # another writer may have changed others
                fact = {OWNER: collection, "column": name, "kind": kind, "position": position}
                key = hashlib.sha256(name.encode()).hexdigest()
                rows.append({"name": f"{collection}.{key}", "facts": fact})
        with self._translate_errors(FACTS) as client:
            self._create_facts(client)
            client.upsert(FACTS, [{**row, VECTOR: [1.0, 0.0]} for row in rows], timeout=self._seconds)
        self._columns[collection] = {**facts["columns"]}

    def create(self, table: str, dim: int, kind: Kind) -> None:
        with self._translate_errors() as client:
            if self._collection(client, self.url.table) == self.url.table:
                raise InputError(f"{self.url} is a collection, not an index of this version; drop it, or name another")
        fields = {"id": {"datatype": pymilvus.DataType.INT64, "is_primary": True}}
        self._create(table, fields, COLUMNS, dim, TYPES[kind], _build_parameters(kind, dim))

    def _create_facts(self, client: Any) -> None:
        if not client.has_collection(FACTS, timeout=self._seconds):
            name = {"datatype": pymilvus.DataType.VARCHAR, "is_primary": True, "max_length": 256}
            self._create(FACTS, {"name": name}, "facts", 2, "FLAT", {})

    def _create(
        self, table: str, fields: Mapping[str, Any], json_field: str, dim: int, index_type: str, parameters: Any
    ) -> None:
        with self._translate_errors() as client:
            if client.has_collection(table, timeout=self._seconds):
                return
            schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
            for name, options in fields.items():
                schema.add_field(name, **options)
            schema.add_field(json_field, pymilvus.DataType.JSON)
            schema.add_field(VECTOR, pymilvus.DataType.FLOAT_VECTOR, dim=dim)
            index = client.prepare_index_params()
            index.add_index(VECTOR, index_type=index_type, metric_type="IP", params=parameters)
            client.create_collection(
                table, schema=schema, index_params=index, consistency_level="Strong", timeout=self._seconds
            )

    def finish(self, table: str, dim: int, kind: Kind) -> None:
        with self._translate_errors(table) as client:
            client.flush(table, timeout=10 * self._seconds)

    def replace(self, table: str, by: str) -> None:
        """The alias of a table is changed when the new collection is loaded and has its facts.

        The collections of an index alternate between two names. A killed call may leave one, which the next call drops.
        """
        first, second = _version_names(table)
        with self._translate_errors() as client:
            old = self._collection(client, table)
            # If an answer is lost, this is called again after the alias was changed.
            new = self._new_names.setdefault(by, second if old == first else first)
            self._rename(client, by, new)
            client.load_collection(new, timeout=self._seconds)
            if old is None:
                client.create_alias(new, table, timeout=self._seconds)
            elif old != new:
                client.alter_alias(new, table, timeout=self._seconds)
        self.drop(second if new == first else first)
        self.drop_generations(table, {None})
        self._delete_facts(by)
        del self._new_names[by]

    def _rename(self, client: Any, by: str, new: str) -> None:
        """Give a collection and its facts a new name, unless an earlier call, whose answer was lost, did so."""
        if client.has_collection(by, timeout=self._seconds):
            if client.has_collection(new, timeout=self._seconds):
                client.drop_collection(new, timeout=self._seconds)
            self._store_facts(new, self._stored_facts(by) or {})
            client.rename_collection(by, new, timeout=self._seconds)

    def drop(self, table: str) -> None:
        with self._translate_errors() as client:
            if client.has_collection(table, timeout=self._seconds):
                client.drop_collection(table, timeout=self._seconds)
        self._delete_facts(table)

    def _delete_facts(self, collection: str) -> None:
        with self._translate_errors(FACTS) as client:
            if client.has_collection(FACTS, timeout=self._seconds):
                client.delete(FACTS, filter=_facts_filter(collection), timeout=self._seconds)

    def set_columns(self, table: str, old: Kinds, new: Kinds) -> bool:
        """No room is needed, but numbers that become texts are written again."""
        return all(old[name].kind == kind.kind or kind.kind != "string" for name, kind in new.items() if name in old)

    # generations: each is a collection, and the index the alias of one; Milvus has no transactions

    def place(self, table: str) -> str:
        with self._translate_errors() as client:
            return self._generation_collection(client, table, self.generation)

    def _generation_collection(self, client: Any, table: str, generation: str | None) -> str:
        if generation is not None:
            return _generation_name(table, generation)
        first, second = _version_names(table)
        return first if client.has_collection(first, timeout=self._seconds) else second

    def _own_collection(self, client: Any, table: str, is_written: bool = False) -> str:
        """The collection that a table means to this engine: an alias may mean that of a newer generation by now."""
        if table != self.url.table or self._source is not None:  # a collection, or the index that is upgraded
            return table
        generation = self.generation  # a service changes it
        if not is_written and generation in self._opened:
            return self._opened[generation]
        if (collection := self._collection(client, table)) is None:
            return table
        own_names = _version_names(table) if generation is None else (_generation_name(table, generation),)
        if collection not in own_names:
            raise StaleGenerationError(self.url)
        self._opened[generation] = collection
        return collection

    def _opened_name(self, table: str) -> str:
        """The collection that was opened under the name of the index, or the name as it is."""
        return self._opened.get(self.generation, table) if table == self.url.table else table

    def begin(self, table: str, present: str | None, facts: Mapping[str, Any]) -> None:
        name = self.place(table)
        self.create(name, facts["dim"], facts["kind"])
        if self._stored_facts(name) is None:
            self._store_facts(name, facts)

    def missing(self, table: str, present: str | None, after: int, limit: int) -> Missing:
        """Also give the columns of images that changed since, and drop those that were deleted."""
        source, own, kinds = self._collections_and_kinds(table)
        if after < 0 and not self._is_switched:
            self._drop_deleted(source, own)
        rows = self.page(source, after, limit, None, kinds, False)
        rows = rows.subset(np.argsort(rows.ids))
        if not len(rows):
            return rows.ids, [], None
        known = self.fetch(own, rows.ids, kinds, False)
        record_by_id = dict(zip(known.ids.tolist(), known.records, strict=True))
        ids, versions, changed = [], [], []
        for row, (number, record) in enumerate(zip(rows.ids.tolist(), rows.records, strict=True)):
            if number not in record_by_id or (
                _version(record_by_id[number]) != _version(record) and not self._is_switched
            ):
                ids.append(number)
                versions.append(_version(record))
            elif record_by_id[number] != record and not self._is_switched:
                changed.append(row)
        if changed:
            new = rows.subset(np.array(changed))
            stored = self.fetch(own, new.ids, {}, True)
            assert stored.vectors is not None
            order = np.argsort(stored.ids)
            new.vectors = stored.vectors[order[np.searchsorted(stored.ids[order], new.ids)]]
            self.write(own, new, kinds)
        return np.array(ids, np.int64), versions, int(rows.ids[-1]) if len(rows) == limit else None

    def _collections_and_kinds(self, table: str) -> tuple[str, str, Kinds]:
        """The collections of the present generation and of this engine's, and the kinds of the columns."""
        if self._source is None:
            with self._translate_errors() as client:
                self._source = self._collection(client, table) or table
        facts = self._stored_facts(self._source)
        if facts is None:
            raise EngineRefusedError(f"{self.url}: the index no longer exists")
        kinds = {name: ColumnKind(**kind) for name, kind in facts["columns"].items()}
        return self._source, self.place(table), kinds

    def _drop_deleted(self, source: str, own: str) -> None:
        """Delete the images of a collection that are no longer in another one."""
        after = -1
        while len(ids := np.sort(self.page(own, after, MAX_BATCH, None, None, False).ids)):
            gone = np.setdiff1d(ids, self.fetch(source, ids, {}, False).ids)
            if len(gone):
                self.delete(own, gone)
            after = int(ids[-1])

    def fill(self, table: str, present: str | None, ids: Integers, versions: Sequence[str], vectors: Floats) -> None:
        source, own, kinds = self._collections_and_kinds(table)
        rows, row_by_id = self.fetch(source, ids, kinds, False), dict(zip(ids.tolist(), range(len(ids)), strict=True))
        positions = [row_by_id[number] for number in rows.ids.tolist()]
        is_same = [versions[row_by_id[number]] == _version(record)
                   for number, record in zip(rows.ids.tolist(), rows.records, strict=True)]  # fmt: skip
        rows.vectors = vectors[positions]
        if any(is_same):
            self.write(own, rows.subset(np.flatnonzero(is_same)), kinds)

    def switch(self, table: str, facts: Mapping[str, Any], finish: Callable[[], object]) -> None:
        """By a change of the alias; images that others add before it, after `finish`, are embedded afterwards."""
        finish()
        with self._translate_errors() as client:
            own = self._generation_collection(client, table, self.generation)
            self._columns.pop(own, None)
            self._store_facts(own, {**(self.read_facts(table) or {}), **facts})
            client.load_collection(own, timeout=self._seconds)
            client.alter_alias(own, table, timeout=self._seconds)
        self._is_switched = True
        finish()

    def drop_generations(self, table: str, keep: Collection[str | None]) -> None:
        with self._translate_errors() as client:
            kept = {
                self._collection(client, table),
                *(self._generation_collection(client, table, each) for each in keep),
            }
            names = client.list_collections(timeout=self._seconds)
        pattern = re.compile(re.escape(table) + "_(generation_[0-9a-f]{16}|version_[12])")
        for name in names:
            if pattern.fullmatch(name) and name not in kept:
                self.drop(name)

    # the rows

    def write(self, table: str, rows: Rows, kinds: Kinds) -> None:
        assert rows.vectors is not None
        data = [
            {"id": number, VECTOR: vector, COLUMNS: _to_json(record, kinds)}
            for number, vector, record in zip(rows.ids.tolist(), rows.vectors.tolist(), rows.records, strict=True)
        ]
        with self._translate_errors(table) as client:
            client.upsert(self._own_collection(client, table, True), data, timeout=self._seconds)

    def delete(self, table: str, ids: Integers) -> None:
        with self._translate_errors(table) as client:
            # An alias may mean another generation by now, which has the same ids.
            for name in {table, self._opened_name(table)}:
                if name == table or client.has_collection(name, timeout=self._seconds):
                    client.delete(name, ids=ids.tolist(), timeout=self._seconds)

    def fetch(self, table: str, ids: Integers, kinds: Kinds, vectors: bool) -> Rows:
        with self._translate_errors(table) as client:
            found = self._query(client, self._own_collection(client, table), self.id_filter(ids), _fields(vectors))
            return _rows(found, kinds, vectors)

    def page(self, table: str, after: int, limit: int, where: str | None, kinds: Kinds | None, vectors: bool) -> Rows:
        fields = ["id"] if kinds is None else _fields(vectors)
        expression = f"id > {after}" + (f" and {where}" if where else "")
        with self._translate_errors(table) as client:  # an iterator sorts by ids, which a query with a limit need not
            iterator = client.query_iterator(
                self._own_collection(client, table), batch_size=limit, limit=limit, filter=expression,
                output_fields=fields, timeout=self._seconds,
            )  # fmt: skip
            try:
                return _rows(iterator.next(), kinds or {}, vectors)
            finally:
                iterator.close()

    def count(self, table: str, where: str | None, at_most: int | None) -> int:
        with self._translate_errors(table) as client:
            number = int(
                self._query(client, self._own_collection(client, table), where or "", ["count(*)"])[0]["count(*)"]
            )
        return number if at_most is None else min(number, at_most)

    def search(self, table: str, queries: Floats, k: int, where: str | None, facts: Mapping[str, Any]) -> Neighbors:
        found: list[list[tuple[int, float]]] = []
        size = max(1, min(256, MAX_RESULTS // k))
        for start in range(0, len(queries), size):
            with self._translate_errors(table) as client:
                hits_of_queries = client.search(
                    self._own_collection(client, table),
                    data=queries[start : start + size].tolist(),
                    anns_field=VECTOR,
                    limit=k,
                    filter=where or "",
                    search_params={"metric_type": "IP", "params": _search_parameters(facts["kind"], k)},
                    output_fields=[],
                    timeout=self._seconds,
                )
            found += [[(hit["id"], hit["distance"]) for hit in hits] for hits in hits_of_queries]
        return sorted_neighbors(found, k)

    def filter(self, condition: Condition, kinds: Kinds, text: str) -> str:
        if self._is_lite is None:
            with self._translate_errors() as client:
                self._is_lite = "lite" in client.get_server_version(timeout=self._seconds).lower()
        return MilvusWriter(kinds, text, has_escapes=not self._is_lite).write(condition)

    def path_filter(self, path: str, kinds: Kinds) -> str:
        return path_expression(path)

    def id_filter(self, ids: Integers) -> str:
        return f"id in [{', '.join(map(str, ids.tolist()))}]"

    def exclude(self, where: str | None, number: int) -> str:
        return f"({where} and id != {number})" if where else f"(id != {number})"

    def check_build(self, kind: Kind, dim: int, rescore: int | None) -> None:
        super().check_build(kind, dim, rescore)
        if rescore is not None:
            raise InputError("Milvus chooses itself how many candidates it compares exactly; leave out rescore")
        if dim > MAX_DIM:
            raise InputError(f"Milvus supports vectors of up to {MAX_DIM:,} dimensions, not {dim:,}; use --dim")

    def check_records(self, records: Sequence[Record]) -> None:
        for record in records:
            for name, value in record.items():
                if isinstance(value, float) and not math.isfinite(value):
                    raise InputError(f"column {name!r} holds {value}, which Milvus cannot store; leave it empty")

    # connection

    def _query(self, client: Any, table: str, expression: str, fields: list[str]) -> Any:
        return client.query(table, filter=expression, output_fields=fields, timeout=self._seconds)

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                scheme = "https" if self.url.option("tls") == "true" else "http"
                host = f"[{self.url.host}]" if ":" in str(self.url.host) else self.url.host
                self._client = pymilvus.MilvusClient(
                    uri=f"{scheme}://{host}:{self.url.port}",
                    token=self._token,
                    db_name=self.url.database or "",
                    timeout=min(CONNECT_SECONDS / 2, self._seconds),
                )
            return self._client

    @contextmanager
    def _translate_errors(self, table: str | None = None) -> Iterator[Any]:
        """The client for one call; translates its errors, transient ones into TransientFault."""
        try:
            yield self._connected()
        except (pymilvus.MilvusException, grpc.RpcError) as error:
            code = error.code() if isinstance(error, grpc.RpcError) else error.code
            details = error.details() if isinstance(error, grpc.RpcError) else error.message
            message = one_line(self._without_token(str(details or error)), 300)
            if code == NOT_LOADED and table is not None:
                with self._translate_errors() as client:  # which the server has not loaded, as after a restart
                    client.load_collection(self._opened_name(table), timeout=self._seconds)
                raise TransientFault(message) from None
            is_transient = any(word in message.lower() for word in TRANSIENT_WORDS)
            if code in TRANSIENT_STATES or code in TRANSIENT_CODES or is_transient:
                raise TransientFault(message) from None
            if code in NOT_FOUND and table == self.url.table and self._opened.pop(self.generation, ""):
                raise TransientFault(message) from None  # built again: the alias means another collection
            if code in NOT_FOUND:
                raise EngineRefusedError(
                    f"Milvus no longer has a collection {table or self.url.table}: {message}"
                ) from None
            kind = EngineRefusedError if code in REFUSED_STATES else InputError
            raise kind(f"Milvus: {message}") from None

    def _without_token(self, message: str) -> str:
        for secret in filter(None, [self._token, *self._token.split(":", 1)[1:]]):
            message = message.replace(secret, "***")
        return message


def _version_names(table: str) -> tuple[str, str]:
    """The two names that the collections of a rebuilt index alternate between."""
    return f"{table}_version_1", f"{table}_version_2"


def _generation_name(table: str, generation: str) -> str:
    """The name of the collection of a generation after an upgrade."""
    return f"{table}_generation_{generation}"


def _version(record: Record) -> str:
    """Identifies the contents of the file of an image, as far as they are known."""
    return str(record.get("file_hash", ""))


def _facts_filter(collection: str) -> str:
    """The filter of the facts of a collection, with those of its columns."""
    return f'name == "{collection}" or facts["{OWNER}"] == "{collection}"'


def _build_parameters(kind: Kind, dim: int) -> dict[str, Any]:
    if kind == "hnsw":
        return {"M": HNSW_LINKS, "efConstruction": HNSW_BUILD}
    if kind == "ivfpq":
        return {"nlist": LISTS, "m": product_code_bytes(dim), "nbits": 8}
    if kind == "rabitq":
        return {"nlist": LISTS, "refine": True, "refine_type": "SQ8"}
    return {"nlist": LISTS} if kind == "sq8" else {}


def _search_parameters(kind: Kind, k: int) -> dict[str, Any]:
    if kind == "hnsw":
        return {"ef": max(HNSW_SEARCH, 2 * k)}
    return {} if kind == "exact" else {"nprobe": IVF_PROBES}


def _fields(vectors: bool) -> list[str]:
    return ["id", COLUMNS, *([VECTOR] if vectors else [])]


def _to_json(record: Record, kinds: Kinds) -> Record:
    """The columns under their keys, and the numbers in numeric texts."""
    values = {column_key(name): value for name, value in record.items()}
    for name, value in record.items():
        if kinds[name].kind == "string" and kinds[name].is_numeric and value != "":
            values[NUMBER + column_key(name)] = number_of(value)
    return values


def _rows(results: Sequence[Mapping[str, Any]], kinds: Mapping[str, ColumnKind], vectors: bool) -> Rows:
    names = {column_key(name): name for name in kinds}
    records = [
        {names[key]: value for key, value in row.get(COLUMNS, {}).items() if key in names and value is not None}
        for row in results
    ]
    arrays = np.array([row[VECTOR] for row in results], np.float32) if vectors else None
    return Rows(np.array([row["id"] for row in results], dtype=np.int64), records, arrays)
