"""The files of images that clients add: where they are, and when they are written and removed."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Collection
from pathlib import Path

from vicinal.utils.files import write_bytes

ADDED = "added"  # the folder within that of the index that holds the images of items which clients added


def image_file(path: str, folder: Path) -> Path:
    """The file of an image; one that a client added is in the folder of the index, wherever that was moved.

    Args:
        path: as the index has it.
        folder: of the index.
    """
    file = Path(path)
    return folder / ADDED / file.name if file.parent.name == ADDED and not file.is_file() else file


STALE_SECONDS = 3600.0
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


def remove_unused(folder: Path, paths: Collection[str]) -> None:
    """Remove the files of images in a folder that no path names, of processes that were killed before they did so.

    Others may be about to add images, so that files of the last hour stay.
    """
    names = {Path(path).name for path in paths}
    for file in folder.glob("*"):
        if file.name not in names and file.stat().st_mtime < time.time() - STALE_SECONDS:
            remove_image(file)
