"""The paths of images: what a client sees of them, and where the files lie."""

from __future__ import annotations

import os
from pathlib import Path

ADDED = "added"  # the folder within that of the index that holds the images of items which clients added


def shown_path(path: str, root: str | None) -> str:
    """A path as clients see it: from the folder of the images on, else the name of the file alone.

    Example:
        >>> shown_path("/photos/cups/1.jpg", "/photos"), shown_path("/elsewhere/2.jpg", "/photos")
        ('cups/1.jpg', '2.jpg')
    """
    prefix = os.path.join(root, "") if root else None
    return path[len(prefix) :] if prefix and path.startswith(prefix) else os.path.basename(path)


def image_file(path: str, folder: Path) -> Path:
    """The file of an image; one that a client added is in the folder of the index, wherever that was moved.

    Args:
        path: as the index has it.
        folder: of the index.
    """
    file = Path(path)
    return folder / ADDED / file.name if file.parent.name == ADDED and not file.is_file() else file
