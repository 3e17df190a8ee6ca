"""The index of a service, in a folder or in a database, and the files of images that clients add."""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from vicinal.retrieval.index.remote.engine_url import is_engine_url
from vicinal.retrieval.search import plain_records
from vicinal.serving.limits import Limits
from vicinal.serving.problems import Problem
from vicinal.utils.arrays import Floats
from vicinal.utils.errors import InputError
from vicinal.utils.files import folder_time, write_bytes

if TYPE_CHECKING:
    from vicinal.retrieval.index.index import Index

STALE_SECONDS = 3600.0
SUFFIXES = {"JPEG": ".jpg", "MPO": ".jpg", "TIFF": ".tif", "JPEG2000": ".jp2", "PPM": ".ppm"}


async def write_image(folder: Path, data: bytes, image_format: str) -> Path:
    """Write a file of a new name; if the caller no longer waits, it is removed once it is written."""
    suffix = SUFFIXES.get(image_format, f".{image_format.lower()}" if image_format.isalnum() else ".img")
    file = folder / f"{secrets.token_hex(16)}{suffix}"
    writing = asyncio.ensure_future(asyncio.to_thread(write_bytes, file, data))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        writing.add_done_callback(lambda _: remove_image(file))
        raise
    return file


def remove_image(file: Path | None) -> None:
    if file is not None:
        file.unlink(missing_ok=True)


def remove_unused(folder: Path, paths: Collection[str]) -> None:
    """Remove image files in a folder that no path names, which killed processes have left.

    Other processes may be about to add images, so files of the last hour stay.
    """
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return
    names, now = {Path(path).name for path in paths}, folder_time(folder)
    for file in folder.glob("*"):
        with suppress(FileNotFoundError):  # another process may remove it
            if file.name not in names and file.is_file() and file.stat().st_mtime < now - STALE_SECONDS:
                remove_image(file)


class UpgradedError(InputError):
    """The index has another model than the vectors of a request."""


class Store(ABC):
    """The index of a service, open within a `with` block, which any number of threads read.

    Facts about the whole index, such as `index.dim`, `index.root` and `len(store)`, are known at once. Methods that
    read rows or search may wait for a database, and are called in a thread; they raise EngineUnavailableError if it
    does not answer.
    """

    engine = "folder"  # or postgresql or milvus
    images: Path | None = None  # the folder where images of added items are kept; None: they are not kept
    index: Any  # while the store is open
    # loads the model of an index that was upgraded, by its settings; the function that it returns takes it into use
    load_model: Callable[[Mapping[str, Any]], Callable[[], None]] | None = None
    epoch = 0  # grows with every upgrade; odd while index and model are switched

    def __init__(self, place: str, name: str, limits: Limits | None, read_only: bool, refiner: Any = None) -> None:
        self.place, self.name, self.limits = place, name, limits or Limits()
        self.read_only, self.refiner = read_only, refiner
        self._stop = threading.Event()

    @abstractmethod
    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def __len__(self) -> int:
        """Number of items; of a database, as it was some seconds ago."""

    @property
    def is_connected(self) -> bool:
        """Whether the index can be searched now."""
        return True

    @property
    def num_unsaved(self) -> int:
        """The number of changes that are not in the index itself yet."""
        return 0

    def check_model(self) -> None:
        """Raise EngineUnavailableError if the index has embeddings of another model since the store was opened."""
        return  # a database is watched for this instead

    # changes

    @abstractmethod
    def add(
        self, vectors: Floats, columns: Mapping[str, Any], path: str | None, key: str | None,
        codes: bytes | None = None, epoch: int | None = None,
    ) -> Future[list[int]]:  # fmt: skip
        """Return a future with the id of a new item, resolved once the change is on disk.

        By its `key`, the request may be repeated. If the vectors, float32 [1, dim], were made in an earlier epoch, the
        future raises UpgradedError. Raises a Problem if too many changes wait, or the service only reads.
        """

    @abstractmethod
    def delete(self, ids: Sequence[int]) -> Future[list[int]]:
        """Return a future with the given ids that existed, resolved once the deletion is on disk; as :meth:`add`."""

    @abstractmethod
    def added_with(self, key: str) -> list[int] | None:
        """The ids of items that were added with a key; None for an unknown key."""

    def check_writable(self) -> None:
        """Raise a Problem if nothing can be added or deleted."""
        if self.read_only:
            raise Problem(405, "this service is read-only", {"Allow": "GET"})
        if self._stop.is_set():
            raise Problem(503, "the service is stopping", {"Retry-After": "5"})

    # rows

    def record(self, number: int) -> dict[str, Any] | None:
        """The columns of an item; None for an unknown id."""
        found = self.index.lookup([number], skip_unknown=True)
        return plain_records(found)[0] if len(found) else None

    @abstractmethod
    def query_vector(self, number: int) -> Floats | None:
        """The vector of an item as a query, float32 [dim]; None for an unknown id."""

    @abstractmethod
    def column_facts(self) -> list[dict[str, Any]]:
        """The name, type and, if they are known to be few, distinct values of each column."""

    def image_file(self, path: str) -> Path:
        return Path(path)


def open_store(
    place: str | Path, limits: Limits, read_only: bool = False, refiner: Any = None, index: Index | None = None
) -> Store:
    """The store of an index by its folder or URL."""
    if is_engine_url(str(place)):
        from vicinal.serving.remote_store import RemoteStore

        return RemoteStore(str(place), limits, read_only, refiner)
    from vicinal.serving.folder_store import FolderStore

    return FolderStore(place, limits, read_only, refiner, index)
