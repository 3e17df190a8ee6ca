"""The service: an index, an embedder, and the answers to requests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vicinal.retrieval.index.index import Index
from vicinal.serving.batching import Batcher, one_by_one_if_broken
from vicinal.serving.bodies import DeleteBody, EmbedBody, ItemBody, SearchBody
from vicinal.serving.decoding import ImageTask, PreparedImage, ThumbnailTask, TorchPreparation
from vicinal.serving.embedders import ImageEmbedder, as_image_embedder
from vicinal.serving.guard import Load, Metrics
from vicinal.serving.limits import Limits
from vicinal.serving.matches import Query, check_condition, search_batch, shown_columns
from vicinal.serving.problems import Problem
from vicinal.serving.security import Fetcher
from vicinal.serving.store import UpgradedError, open_store, remove_image, write_image
from vicinal.serving.workers import DecodingPool, Thumbnails
from vicinal.utils.arrays import Floats
from vicinal.utils.errors import InputError

if TYPE_CHECKING:
    from vicinal.serving.local_queries import LocalQueries

MAX_DECODE_SECONDS = 10.0
PAUSE_SECONDS = 0.02  # between checks whether index and model have been switched


class Service:
    """Answers the requests about an index.

    It is open within a `with` block; an application opens it while it runs.

    Args:
        place: the folder of the index, or its URL in a database.
        embedder: embeds images: an :class:`~vicinal.Embedder`, or see
            `vicinal.serving.embedders.as_image_embedder`; None: vectors and ids only are searched for.
        limits: of requests.
        read_only: whether to follow the changes of another process instead of making any.
        refiner: the refiner that the index was built with, if any.
        allow_urls: hosts from which images may be fetched.
        index: the index, if it was loaded from the folder already.
        load_models: gives the embedder and the refiner, or None, of an index that was upgraded to another model, by
            its settings; None: requests are refused then.

    Raises:
        InputError: the index cannot be served, or the embedder does not belong to it.
    """

    def __init__(
        self,
        place: str | Path,
        embedder: Any = None,
        limits: Limits | None = None,
        read_only: bool = False,
        refiner: Any = None,
        allow_urls: Sequence[str] = (),
        index: Index | None = None,
        load_models: Callable[[Mapping[str, Any]], tuple[Any, Any]] | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.embedder = None if embedder is None else as_image_embedder(embedder)
        self.store = open_store(place, self.limits, read_only, refiner, index)
        self.fetcher = Fetcher(allow_urls, self.limits.max_body)
        self.metrics, self.load = Metrics(), Load()
        self.is_stopping = False
        self._load_models = None if self.embedder is None else load_models
        self._pool: DecodingPool | None = None
        self._pools: list[DecodingPool] = []  # the last one, and after an upgrade the one before
        self._stack: ExitStack | None = None
        self._thumbnails: Thumbnails | None = None
        self._local: LocalQueries | None = None

    def __enter__(self) -> Service:
        with ExitStack() as stack:
            stack.enter_context(self.store)
            stack.callback(self._close_pools)
            if self.embedder is not None and self.embedder.dim != self.index.dim:
                raise InputError(
                    f"the model gives {self.embedder.dim} dimensions, the index has {self.index.dim}; give the "
                    "model that the index was built with"
                )
            if self.embedder is not None:
                self.index.check_model(self.embedder.fingerprint)
                self._local = self._local_queries(self.embedder, self.index.local_settings)
            self._pool = self._new_pool(self.embedder, self._local)
            self._thumbnails = Thumbnails(self._pool)
            if self._load_models is not None:
                self.store.load_model = self._load_model
            self._add_gauges()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        if self._stack is not None:
            self._stack.close()
        self._stack = None

    def _new_pool(self, embedder: Any, local: LocalQueries | None) -> DecodingPool:
        limits, preparation = self.limits, None if embedder is None else embedder.preparation
        if preparation is not None and local is not None:
            preparation = replace(preparation, local_transform=local.transform)
        memory, seconds = int(limits.decode_memory_mb * 2**20), min(limits.request_seconds, MAX_DECODE_SECONDS)
        self._pools.append(DecodingPool(preparation, limits.decode_workers, limits.max_pixels, memory, seconds))
        return self._pools[-1]

    def _close_pools(self, keep: DecodingPool | None = None) -> None:
        for pool in [each for each in self._pools if each is not keep]:
            self._pools.remove(pool)
            pool.close()

    def _load_model(self, settings: Mapping[str, Any]) -> Callable[[], None]:
        """Load the model of an upgraded index; the function that is returned takes it into use."""
        assert self._load_models is not None  # or the store would not ask
        model, refiner = self._load_models(settings)
        embedder = as_image_embedder(model)
        local = self._local_queries(embedder, settings.get("local_features"))
        self._close_pools(keep=self._pool)  # requests use it; a model that was loaded in vain has another
        pool = self._new_pool(embedder, local)

        def take_into_use() -> None:
            self.embedder, self._pool, self._thumbnails = embedder, pool, Thumbnails(pool)
            self._local, self.store.refiner = local, refiner

        return take_into_use

    async def _epoch(self) -> int:
        """The epoch of index and model, see :class:`Store`, once both have been switched."""
        while (epoch := self.store.epoch) % 2:
            await asyncio.sleep(PAUSE_SECONDS)
        return epoch

    async def _within_epoch(self, answer: Callable[[], Awaitable[Any]]) -> Any:
        """An answer whose vectors are all of one model; it is computed again if the index was upgraded meanwhile."""
        while True:
            epoch = await self._epoch()
            try:
                found = await answer()
                if epoch == self.store.epoch:
                    return found
            except Exception:
                is_changing = self._load_models is not None and not self.store.is_connected
                if epoch == self.store.epoch and not (is_changing and self.store.engine == "folder"):
                    raise
                await asyncio.sleep(PAUSE_SECONDS)

    @staticmethod
    def _local_queries(embedder: ImageEmbedder, settings: dict[str, Any] | None) -> LocalQueries | None:
        """The queries' computation of local features, if the index stores some by these settings."""
        if settings is None or not isinstance(embedder.preparation, TorchPreparation):
            return None
        from vicinal.serving.local_queries import LocalQueries

        return LocalQueries(settings, embedder)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer requests for a block, in the event loop of the caller."""
        async with AsyncExitStack() as stack:
            if self._stack is None:
                stack.enter_context(self)
            self._batchers: dict[str, Batcher[Any, Any]] = {
                "embed": self._batcher("embed", self._embed_batch, max_wait=self.limits.max_wait_ms / 1000),
                "search": self._batcher("search", self._search_batch),
                "filtered": self._batcher("filtered", self._search_batch),
            }
            for batcher in self._batchers.values():
                await stack.enter_async_context(batcher)
            self.is_stopping = False
            yield
            self.is_stopping = True

    def _batcher(
        self, name: str, run: Callable[[Sequence[Any]], Sequence[Any]], max_wait: float = 0.0
    ) -> Batcher[Any, Any]:
        return Batcher(
            one_by_one_if_broken(run),
            max_batch=self.limits.max_batch,
            max_wait=max_wait,
            max_queue=self.limits.max_queue,
            name=name,
            observe=self.metrics.batches.labels(name).observe,
        )

    @property
    def index(self) -> Any:
        """The index as it is now."""
        return self.store.index

    @property
    def is_ready(self) -> bool:
        """Whether requests are taken now."""
        return self._stack is not None and not self.is_stopping

    async def search(self, body: SearchBody) -> dict[str, Any]:
        """Answer `POST /search`."""
        if body.k > self.limits.max_k:
            raise Problem(422, f"k: {body.k:,} is too large; use 1 to {self.limits.max_k:,}")
        check_condition(body.filter, self.limits)
        if body.rerank is not None and len(self.store) > self.limits.max_rerank:
            raise Problem(422, f"rerank: it is for indexes of at most {self.limits.max_rerank:,} items; leave it out")
        is_slow = any(each is not None for each in (body.filter, body.group_by, body.rerank, body.exclude_id))
        batcher = self._batchers["filtered" if is_slow else "search"]

        async def search() -> Any:
            vector, codes = await self._vector(body), None
            if body.rerank == "local":
                codes = await self._codes(body)
            return await batcher.submit((vector, body.options(), codes))

        return await self._within_epoch(search)

    async def embed(self, body: EmbedBody) -> dict[str, Any]:
        """Answer `POST /embed`."""

        async def embed() -> Any:
            vector, _ = await self._embed(body.image, body.url, body.box)
            return vector, None if self.embedder is None else self.embedder.fingerprint

        vector, fingerprint = await self._within_epoch(embed)
        return {"vector": vector.tolist(), "dim": len(vector), "model": fingerprint or self.index.model_fingerprint}

    async def add(self, body: ItemBody, key: str | None) -> dict[str, Any]:
        """Answer `POST /items`."""
        self.store.check_writable()
        known = None if key is None else await asyncio.to_thread(self.store.added_with, key)
        if known is not None:
            return {"ids": [str(each) for each in known]}
        columns = _columns_of(body)
        while True:
            with suppress(UpgradedError):
                return {"ids": [str(each) for each in await self._add(body, columns, key)]}

    async def _add(self, body: ItemBody, columns: dict[str, Any], key: str | None) -> list[int]:
        """Add an item; raises UpgradedError if the index was upgraded since it was embedded."""
        epoch = await self._epoch()
        if body.image is None:
            vector, file, codes = self._checked_vector(body.vector or []), None, None
        else:
            vector, image_format = await self._within_epoch(partial(self._embed, body.image))
            codes = None
            if self._local is not None and self._local.transform is not None:
                codes = (await self._within_epoch(partial(self._local_codes, body.image))).tobytes()
            folder = self.store.images
            file = None if folder is None else await write_image(folder, body.image, image_format)
        try:
            answer = self.store.add(vector[None], columns, None if file is None else str(file), key, codes, epoch)
        except Problem:
            remove_image(file)
            raise
        answer.add_done_callback(partial(self._remove_if_unused, file))
        return await asyncio.wrap_future(answer)

    async def delete(self, body: DeleteBody) -> dict[str, Any]:
        """Answer `DELETE /items`."""
        ids: Sequence[int] = body.ids or ()
        if body.filter is not None:
            check_condition(body.filter, self.limits)
            ids = await asyncio.to_thread(self._ids_where, body.filter)
        if len(ids) > self.limits.max_delete:
            raise Problem(422, f"{len(ids):,} items are too many; delete at most {self.limits.max_delete:,} at a time")
        deleted = await asyncio.wrap_future(self.store.delete(ids))
        return {"deleted": len(deleted)}

    async def item(self, number: int) -> dict[str, Any]:
        """Answer `GET /items/{id}`."""
        record = await self._record(number)
        return {"id": str(number), "label": record.get("label"), "columns": shown_columns(record, self.index.root)}

    async def thumbnail(self, number: int, size: int) -> bytes:
        """Answer `GET /items/{id}/image`."""
        record = await self._record(number)
        if "path" not in record or self._thumbnails is None:
            raise Problem(404, f"item {number} has no image")
        file = self.store.image_file(record["path"])
        try:
            box = tuple(record["box"]) if "box" in record else None
            changed = await asyncio.to_thread(_file_time, file)
            return await self._thumbnails.get(ThumbnailTask(str(file), box, size, changed))
        except InputError:
            raise Problem(404, f"item {number} has no image that can be read") from None

    async def info(self) -> dict[str, Any]:
        """Answer `GET /info`."""
        from vicinal import __version__

        index = self.index
        model, local = index.made_with.get("model"), index.local_settings
        return {
            "name": self.store.name,
            "engine": self.store.engine,
            "is_connected": self.store.is_connected,
            "images": len(self.store),
            "dim": index.dim,
            "kind": index.kind,
            "model": {
                "fingerprint": index.model_fingerprint,
                "name": self.embedder.name if self.embedder is not None else model and os.path.basename(model),
            },
            "refiner": {"fingerprint": index.refiner_fingerprint},
            "calibration": None if index.calibration is None else index.calibration.describe(),
            "local": local and {name: local[name] for name in ("grid", "square", "weight")},
            "columns": await asyncio.to_thread(self.store.column_facts),
            "limits": self.limits.to_dict(),
            "can_write": not self.store.read_only,
            "can_embed": self.embedder is not None,
            "version": __version__,
        }

    def without_paths(self, text: str) -> str:
        """A message without the folders of this machine and the address of its database."""
        if self.store.engine != "folder":
            text = text.replace(self.store.place, self.store.name)
        place = self.store.place
        for folder in filter(None, (os.path.realpath(place), place, self.index.root)):
            text = text.replace(folder, os.path.basename(folder)) if os.path.isabs(folder) else text
        return text

    async def _record(self, number: int) -> dict[str, Any]:
        record = await asyncio.to_thread(self.store.record, number)
        if record is None:
            raise _unknown_item(number)
        return record

    def _ids_where(self, condition: str) -> list[int]:
        """The ids of the items that fulfill a condition, if one request may delete that many."""
        index, limit = self.index, self.limits.max_delete
        if index.count(index.select(condition), at_most=limit + 1) > limit:
            raise Problem(422, f"more than {limit:,} items match the filter; one request deletes at most that many")
        return index.where(condition).tolist()

    async def _vector(self, body: SearchBody) -> Floats:
        if body.vector is not None:
            return self._checked_vector(body.vector)
        if body.id is not None:
            found = await asyncio.to_thread(self.store.query_vector, body.id)
            if found is None:
                raise _unknown_item(body.id)
            return found
        vector, _ = await self._embed(body.image, body.url, body.box)
        return vector

    async def _codes(self, body: SearchBody) -> Any:
        """The codes of the local features of a query, uint8 [patches, dim]."""
        from vicinal.serving.local_queries import NONE_STORED, stored_codes

        if self.index.local_settings is None:
            raise Problem(422, NONE_STORED)
        if body.id is not None:
            return await asyncio.to_thread(stored_codes, self.index, body.id)
        if body.vector is not None:
            raise Problem(422, "rerank: local features need an image; give image, url or id, not vector")
        return await self._local_codes(body.image, body.url, body.box)

    async def _local_codes(
        self, image: bytes | None, url: str | None = None, box: Sequence[float] | None = None
    ) -> Any:
        if self._local is None or self._local.transform is None:
            raise Problem(422, "rerank: this service has no model for local features of images; give the id of an item")
        prepared = await self._prepared(image, url, box, is_local=True)
        return await asyncio.to_thread(self._local.encode, prepared.pixels)

    def _checked_vector(self, values: Sequence[float]) -> Floats:
        if len(values) != self.index.dim:
            raise Problem(422, f"vector: it has {len(values):,} dimensions, the index has {self.index.dim}")
        with np.errstate(over="ignore"):
            vector = np.array(values, np.float32)
        if not np.isfinite(vector).all():
            raise Problem(422, "vector: its values must be finite numbers of 32 bits")
        return vector

    async def _embed(
        self, image: bytes | None, url: str | None = None, box: Sequence[float] | None = None
    ) -> tuple[Floats, str]:
        """The embedding of an image, or of one that is fetched, and the name of its format."""
        embedder, prepared = self.embedder, await self._prepared(image, url, box)
        return await self._batchers["embed"].submit((embedder, prepared)), prepared.format

    async def _prepared(
        self, image: bytes | None, url: str | None, box: Sequence[float] | None, is_local: bool = False
    ) -> PreparedImage:
        """An image, or one that is fetched, as the model takes it."""
        if self.embedder is None or self._pool is None:
            raise Problem(422, "this service has no model; it takes vectors and ids")
        data = await self.fetcher.fetch(url) if url is not None else image or b""
        edges = None if box is None else (box[0], box[1], box[0] + box[2], box[1] + box[3])
        try:
            prepared: PreparedImage = await asyncio.wrap_future(self._pool.submit(ImageTask(data, edges, is_local)))
        except InputError as error:
            raise Problem(422, f"image: {error}") from None
        return prepared

    def _embed_batch(self, images: Sequence[tuple[ImageEmbedder, PreparedImage]]) -> Sequence[Any]:
        vectors: dict[int, Floats] = {}
        for embedder in {id(each): each for each, _ in images}.values():  # two after an upgrade
            rows = [row for row, (each, _) in enumerate(images) if each is embedder]
            vectors |= dict(zip(rows, embedder.embed([images[row][1].pixels for row in rows]), strict=True))
        return [vectors[row] for row in range(len(images))]

    def _search_batch(self, queries: Sequence[Query]) -> Sequence[Any]:
        found = search_batch(self.index, queries, self.store.refiner, self.limits.max_candidates)
        self.store.check_model()  # after the search, or the index might be upgraded before it
        return found

    def _remove_if_unused(self, file: Path | None, answer: Future[list[int]]) -> None:
        """Remove the file of an image that was not added."""
        if file is None:
            return
        if not answer.cancelled() and answer.exception() is None:
            records = [each for each in map(self.store.record, answer.result()) if each is not None]
            if not records or str(file) in [each.get("path") for each in records]:
                return
        remove_image(file)

    def _add_gauges(self) -> None:
        self.metrics.add_gauge("items", "Items of the index.", lambda: len(self.store))
        self.metrics.add_gauge("is_connected", "Whether the index can be searched.", lambda: self.store.is_connected)
        self.metrics.add_gauge(
            "unsaved_changes", "Vectors that the vector files do not hold yet.", lambda: self.store.num_unsaved
        )
        self.metrics.add_gauge("requests_in_work", "Requests in progress.", lambda: self.load.requests)
        self.metrics.add_gauge(
            "decoder_deaths", "Processes that died or hung while they decoded an image.",
            lambda: 0 if self._pool is None else self._pool.num_deaths,
        )  # fmt: skip


def _file_time(file: Path) -> int:
    try:
        return os.stat(file).st_mtime_ns
    except (OSError, ValueError):  # reading it says why
        return 0


def _columns_of(body: ItemBody) -> dict[str, Any]:
    """The columns of a new item, its label among them."""
    columns = dict(body.columns)
    if body.label is None:
        return columns
    if columns.get("label", body.label) != body.label:
        raise Problem(422, "label: columns has a different one; give it once")
    return {**columns, "label": body.label}


def _unknown_item(number: int) -> Problem:
    return Problem(404, f"no item {number}; it was never added or is deleted")
