"""Where the files of images lie that clients added."""

from __future__ import annotations

from pathlib import Path

ADDED = "added"  # the folder within that of the index that holds the images of items which clients added


def image_file(path: str, folder: Path) -> Path:
    """The file of an image; one that a client added is in the folder of the index, wherever that was moved.

    Args:
        path: as the index has it.
        folder: of the index.
    """
    file = Path(path)
    return folder / ADDED / file.name if file.parent.name == ADDED and not file.is_file() else file
