"""The service: an index, what embeds images, and the answers to requests."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vicinal.retrieval.index.index import Index
from vicinal.retrieval.search import plain_records
from vicinal.serving.batching import Batcher
from vicinal.serving.bodies import DeleteBody, EmbedBody, ItemBody, SearchBody
from vicinal.serving.column_facts import Facts, facts_of, facts_of_snapshot
from vicinal.serving.conditions import check_condition
from vicinal.serving.decoding import ImageTask, PreparedImage, ThumbnailTask
from vicinal.serving.embedders import as_image_embedder
from vicinal.serving.fetching import Fetcher
from vicinal.serving.guard import Load
from vicinal.serving.limits import Limits
from vicinal.serving.matches import Query, SearchOptions, search_batch, shown_columns
from vicinal.serving.monitoring import Metrics
from vicinal.serving.paths import ADDED, image_file
from vicinal.serving.problems import Problem
from vicinal.serving.snapshot import Snapshot
from vicinal.serving.store import Store
from vicinal.serving.workers import DecodingPool
from vicinal.utils.arrays import Floats
from vicinal.utils.errors import InputError
from vicinal.utils.files import write_bytes

MAX_THUMBNAILS = 512  # that are remembered
MAX_DECODE_SECONDS = 10.0
SUFFIXES = {"JPEG": ".jpg", "MPO": ".jpg", "TIFF": ".tif", "JPEG2000": ".jp2", "PPM": ".ppm"}


class Service:
    """Answers the requests about an index.

    It is open within a `with` block; an application opens it by itself while it runs.

    Args:
        folder: of the index.
        embedder: what embeds images: an :class:`~vicinal.Embedder`, or see
            `vicinal.serving.embedders.as_image_embedder`; None: vectors and ids only are searched for.
        limits: of requests.
        read_only: whether to follow the changes of another process instead of making any.
        refiner: the refiner that the index was built with, if any.
        allow_urls: hosts from which images may be fetched.
        index: the index, if it was loaded from the folder already.

    Raises:
        InputError: the index cannot be served, or the embedder is not its.
    """

    def __init__(
        self,
        folder: str | Path,
        embedder: Any = None,
        limits: Limits | None = None,
        read_only: bool = False,
        refiner: Any = None,
        allow_urls: Sequence[str] = (),
        index: Index | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.embedder = None if embedder is None else as_image_embedder(embedder)
        self.store = Store(folder, self.limits, read_only, refiner, index)
        self.folder = self.store.folder
        self.fetcher = Fetcher(allow_urls, self.limits.max_body)
        self.metrics, self.load = Metrics(), Load()
        self.is_stopping = False
        self._pool: DecodingPool | None = None
        self._stack: ExitStack | None = None
        self._thumbnails: OrderedDict[ThumbnailTask, bytes] = OrderedDict()
        self._facts: tuple[Any, Facts] | None = None

    def __enter__(self) -> Service:
        with ExitStack() as stack:
            stack.enter_context(self.store)
            if self.embedder is not None and self.embedder.dim != self.snapshot.dim:
                raise InputError(
                    f"the model gives {self.embedder.dim} dimensions, the index has {self.snapshot.dim}; give the "
                    "model that the index was built with"
                )
            preparation = None if self.embedder is None else self.embedder.preparation
            memory, seconds = int(self.limits.decode_memory_mb * 2**20), self.limits.request_seconds
            self._pool = DecodingPool(
                preparation, self.limits.decode_workers, self.limits.max_pixels, memory,
                min(seconds, MAX_DECODE_SECONDS),
            )  # fmt: skip
            stack.callback(self._pool.close)
            self._add_gauges()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        if self._stack is not None:
            self._stack.close()
        self._stack = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer requests for a block, in the event loop of the caller."""
        async with AsyncExitStack() as stack:
            if self._stack is None:
                stack.enter_context(self)
            make = partial(Batcher, max_batch=self.limits.max_batch, max_queue=self.limits.max_queue)
            wait = self.limits.max_wait_ms / 1000
            batchers = {
                "embed": make(_one_by_one_if_broken(self._embed_batch), max_wait=wait, name="embed"),
                "search": make(_one_by_one_if_broken(self._search_batch), name="search"),
                "filtered": make(_one_by_one_if_broken(self._search_batch), name="filtered"),
            }
            for name, batcher in batchers.items():
                batcher._observe = self.metrics.batch_observer(name)
                await stack.enter_async_context(batcher)
            self._batchers: dict[str, Any] = batchers
            self.is_stopping = False
            yield
            self.is_stopping = True

    @property
    def snapshot(self) -> Snapshot:
        """The index as it is now."""
        return self.store.snapshot

    @property
    def is_ready(self) -> bool:
        """Whether requests are answered now."""
        return self._stack is not None and not self.is_stopping

    async def search(self, body: SearchBody) -> dict[str, Any]:
        """Answer `POST /search`."""
        if body.k > self.limits.max_k:
            raise Problem(422, f"k: {body.k:,} is too large; use 1 to {self.limits.max_k:,}")
        check_condition(body.filter, self.limits)
        if body.rerank is not None and len(self.snapshot) > self.limits.max_rerank:
            raise Problem(422, f"rerank: it is for indexes of at most {self.limits.max_rerank:,} items; leave it out")
        vector = await self._vector(body)
        options = SearchOptions(
            body.k, body.min_score, body.min_probability, body.filter, body.group_by, body.rerank, body.exclude_id,
            self.limits.max_candidates,
        )  # fmt: skip
        is_slow = any(each is not None for each in (body.filter, body.group_by, body.rerank, body.exclude_id))
        batcher = self._batchers["filtered" if is_slow else "search"]
        answer: dict[str, Any] = await batcher.submit(Query(vector, options))
        return answer

    async def embed(self, body: EmbedBody) -> dict[str, Any]:
        """Answer `POST /embed`."""
        vector, _ = await self._embed(await self._image(body), body.box)
        fingerprint = None if self.embedder is None else self.embedder.fingerprint
        return {"vector": vector.tolist(), "dim": len(vector), "model": fingerprint or self.snapshot.model_fingerprint}

    async def add(self, body: ItemBody, key: str | None) -> dict[str, Any]:
        """Answer `POST /items`."""
        self.store.check_writable()
        known = None if key is None else self.store.added_with(key)
        if known is not None:
            return {"ids": [str(each) for each in known]}
        columns = dict(body.columns)
        if body.label is not None:
            if columns.get("label", body.label) != body.label:
                raise Problem(422, "label: columns has another one; give it once")
            columns["label"] = body.label
        if body.image is None:
            vector, file = self._checked_vector(body.vector or []), None
        else:
            vector, name = await self._embed(body.image, None)
            file = self.folder.resolve() / ADDED / f"{secrets.token_hex(16)}{_suffix(name)}"
            await _write(file, body.image)
        try:
            answer = self.store.add(vector[None], columns, None if file is None else str(file), key)
        except Problem:
            _remove(file)
            raise
        answer.add_done_callback(partial(self._remove_if_unused, file))
        return {"ids": [str(each) for each in await asyncio.wrap_future(answer)]}

    async def delete(self, body: DeleteBody) -> dict[str, Any]:
        """Answer `DELETE /items`."""
        ids: Sequence[int] = body.ids or ()
        if body.filter is not None:
            check_condition(body.filter, self.limits)
            ids = (await asyncio.to_thread(self.snapshot.where, body.filter)).tolist()
        if len(ids) > self.limits.max_delete:
            raise Problem(422, f"{len(ids):,} items are too many; delete at most {self.limits.max_delete:,} at a time")
        deleted = await asyncio.wrap_future(self.store.delete(ids))
        return {"deleted": len(deleted)}

    async def item(self, number: int) -> dict[str, Any]:
        """Answer `GET /items/{id}`."""
        record = self._record(number)
        return {"id": str(number), "label": record.get("label"), "columns": shown_columns(record, self.snapshot.root)}

    async def thumbnail(self, number: int, size: int) -> bytes:
        """Answer `GET /items/{id}/image`."""
        record = self._record(number)
        if "path" not in record or self._pool is None:
            raise Problem(404, f"item {number} has no image")
        file = image_file(record["path"], self.folder)
        task = ThumbnailTask(str(file), tuple(record["box"]) if "box" in record else None, size)
        if task not in self._thumbnails:
            try:
                self._thumbnails[task] = await asyncio.wrap_future(self._pool.submit(task))
            except InputError:
                raise Problem(404, f"item {number} has no image that can be read") from None
            while len(self._thumbnails) > MAX_THUMBNAILS:
                self._thumbnails.popitem(last=False)
        return self._thumbnails[task]

    async def info(self) -> dict[str, Any]:
        """Answer `GET /info`."""
        from vicinal import __version__

        snapshot = self.snapshot
        model = snapshot.made_with.get("model")
        return {
            "name": self.folder.resolve().name,
            "images": len(snapshot),
            "dim": snapshot.dim,
            "kind": snapshot.kind,
            "model": {
                "fingerprint": snapshot.model_fingerprint,
                "name": self.embedder.name if self.embedder is not None else model and os.path.basename(model),
            },
            "refiner": {"fingerprint": snapshot.refiner_fingerprint},
            "calibration": None if snapshot.calibration is None else snapshot.calibration.describe(),
            "columns": await asyncio.to_thread(self._columns, snapshot),
            "limits": self.limits.to_dict(),
            "can_write": not self.store.read_only,
            "can_embed": self.embedder is not None,
            "version": __version__,
        }

    def without_paths(self, text: str) -> str:
        """A message without the folders of this machine."""
        root = self.snapshot.root
        for folder in filter(None, (str(self.folder.resolve()), str(self.folder), root)):
            text = text.replace(folder, os.path.basename(folder)) if os.path.isabs(folder) else text
        return text

    def _columns(self, snapshot: Snapshot) -> list[dict[str, Any]]:
        base = snapshot.metadata.base
        if self._facts is None or self._facts[0] is not base:
            self._facts = base, facts_of(base.metadata.frame)
        return facts_of_snapshot(snapshot, self._facts[1])

    def _record(self, number: int) -> dict[str, Any]:
        snapshot = self.snapshot
        if not snapshot.has(number):
            raise Problem(404, f"there is no item {number}; it was never given or is deleted")
        return plain_records(snapshot.metadata.lookup(np.array([number])))[0]

    async def _vector(self, body: SearchBody) -> Floats:
        if body.vector is not None:
            return self._checked_vector(body.vector)
        if body.id is not None:
            snapshot = self.snapshot
            if not snapshot.has(body.id):
                raise Problem(404, f"there is no item {body.id}; it was never given or is deleted")
            return snapshot.query_vectors([body.id])[0]
        vector, _ = await self._embed(await self._image(body), body.box)
        return vector

    def _checked_vector(self, values: Sequence[float]) -> Floats:
        if len(values) != self.snapshot.dim:
            raise Problem(422, f"vector: it has {len(values):,} dimensions, the index has {self.snapshot.dim}")
        with np.errstate(over="ignore"):
            vector = np.array(values, np.float32)
        if not np.isfinite(vector).all():
            raise Problem(422, "vector: its values must be finite numbers of 32 bits")
        return vector

    async def _image(self, body: EmbedBody | SearchBody) -> bytes:
        if self.embedder is None:
            raise Problem(422, "this service has no model; it takes vectors and ids")
        return await self.fetcher.fetch(body.url) if body.url is not None else body.image or b""

    async def _embed(self, data: bytes, box: Sequence[float] | None) -> tuple[Floats, str]:
        """The embedding of an image, and the name of its format."""
        if self.embedder is None or self._pool is None:
            raise Problem(422, "this service has no model; it takes vectors and ids")
        edges = None if box is None else (box[0], box[1], box[0] + box[2], box[1] + box[3])
        try:
            image: PreparedImage = await asyncio.wrap_future(self._pool.submit(ImageTask(data, edges)))
        except InputError as error:
            raise Problem(422, f"image: {error}") from None
        return await self._batchers["embed"].submit(image), image.format

    def _embed_batch(self, images: Sequence[PreparedImage]) -> Sequence[Any]:
        if self.embedder is None:
            raise InputError("this service has no model")
        return list(self.embedder.embed([image.pixels for image in images]))

    def _search_batch(self, queries: Sequence[Query]) -> Sequence[Any]:
        return search_batch(self.snapshot, queries, self.store.refiner)

    def _remove_if_unused(self, file: Path | None, answer: Future[list[int]]) -> None:
        """Remove the file of an image that was not added."""
        if file is None:
            return
        if not answer.cancelled() and answer.exception() is None:
            ids = [number for number in answer.result() if self.snapshot.has(number)]
            rows = self.snapshot.metadata.lookup(np.array(ids, dtype=np.int64))
            if not ids or ("path" in rows and str(file) in rows["path"].tolist()):
                return
        _remove(file)

    def _add_gauges(self) -> None:
        self.metrics.add_gauge("items", "Items of the index.", lambda: len(self.snapshot))
        self.metrics.add_gauge("unsaved_changes", "Changes in the journal only.", lambda: self.store.num_unsaved)
        self.metrics.add_gauge("requests_in_work", "Requests that are worked on.", lambda: self.load.requests)
        self.metrics.add_gauge(
            "decoder_deaths", "Processes that died or hung while they decoded an image.",
            lambda: 0 if self._pool is None else self._pool.num_deaths,
        )  # fmt: skip


def _one_by_one_if_broken(run: Callable[[Sequence[Any]], Sequence[Any]]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Work on the items of a batch one by one if the batch fails, so that one of them does not spoil the others."""

    def attempt(items: Sequence[Any]) -> Sequence[Any]:
        try:
            return run(items)
        except Exception as error:
            return [error] if len(items) == 1 else [result for item in items for result in attempt([item])]

    return attempt


def _suffix(name: str) -> str:
    return SUFFIXES.get(name, f".{name.lower()}" if name.isalnum() else ".img")


async def _write(file: Path, data: bytes) -> None:
    """Write a file; if nobody waits for it any more, it is removed once it is written."""
    writing = asyncio.ensure_future(asyncio.to_thread(write_bytes, file, data))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        writing.add_done_callback(lambda _: _remove(file))
        raise


def _remove(file: Path | None) -> None:
    if file is not None:
        file.unlink(missing_ok=True)
