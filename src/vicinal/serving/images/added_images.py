"""The files of images that clients add: written before the item is, removed if it is not added, or deleted later."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vicinal.serving.images.paths import ADDED, image_file
from vicinal.utils.files import write_bytes

if TYPE_CHECKING:
    from vicinal.retrieval.index.index import Index
    from vicinal.serving.store.changes import Change

SUFFIXES = {"JPEG": ".jpg", "MPO": ".jpg", "TIFF": ".tif", "JPEG2000": ".jp2", "PPM": ".ppm"}


async def write_image(folder: Path, data: bytes, image_format: str) -> Path:
    """Write a file of a new name; if nobody waits for it any more, it is removed once it is written.

    Args:
        folder: of the images.
        data: of the file.
        image_format: as Pillow names it, such as `JPEG`.
    """
    file = folder / f"{secrets.token_hex(16)}{_suffix(image_format)}"
    writing = asyncio.ensure_future(asyncio.to_thread(write_bytes, file, data))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        writing.add_done_callback(lambda _: remove_image(file))
        raise
    return file


def remove_image(file: Path | None) -> None:
    """Remove the file of an image, if there is one."""
    if file is not None:
        file.unlink(missing_ok=True)


def _suffix(image_format: str) -> str:
    return SUFFIXES.get(image_format, f".{image_format.lower()}" if image_format.isalnum() else ".img")


def images_of_deleted(index: Index, changes: Sequence[Change], folder: Path) -> list[Path]:
    """The files of the images that clients had added, of items that changes delete from the index in a folder."""
    deleted = [number for change in changes for number in change.deleted]
    paths = {number: row.get("path") for change in changes for number, row in zip(change.ids, change.rows, strict=True)}
    old = index.metadata.lookup([number for number in deleted if number not in paths])
    if "path" in old:
        paths |= dict(zip(old["id"].tolist(), old["path"].tolist(), strict=True))
    files = [image_file(path, folder) for path in map(paths.get, deleted) if isinstance(path, str)]
    return [file for file in files if file.parent == folder.resolve() / ADDED or file.parent == folder / ADDED]
