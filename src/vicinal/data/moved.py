"""Images that were moved to another folder with the same folders below it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePath

from vicinal.utils.errors import InputError

MAX_PROBES = 1000  # images that are looked for in the new folder

ADDED = "added"  # the folder within that of an index that holds the images of items which clients of a service added


def image_file(path: str, folder: Path) -> Path:
    """The file of an image; one that a client added is in the folder of the index, wherever that was moved.

    Args:
        path: as the index has it.
        folder: of the index.
    """
    file = Path(path)
    return folder / ADDED / file.name if file.parent.name == ADDED and not file.is_file() else file


def move_root(paths: Sequence[str], root: str | Path) -> list[str]:
    """Replace the folder that images were in by the one that they are in now.

    The old folder needs no name: it is what precedes the longest ending of a path that exists in the new folder. Paths
    that do not begin with it stay as they are.

    Args:
        paths: Absolute paths of the images.
        root: The new folder.

    Returns:
        The new paths.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     os.makedirs(f"{folder}/new/cat")
        ...     Path(folder, "new/cat/1.png").touch()
        ...     moved = move_root([f"{folder}/old/cat/1.png", "/other/2.png"], f"{folder}/new")
        ...     [os.path.relpath(moved[0], folder), moved[1]]
        ['new/cat/1.png', '/other/2.png']
    """
    new = os.path.abspath(root)
    old = find_old_root(paths, new)
    return [moved_path(path, old, new) for path in paths]


def find_old_root(paths: Sequence[str], new: str, known: str | None = None) -> str:
    """The folder that images were in which are in another one now.

    Args:
        paths: Absolute paths of the images.
        new: The new folder.
        known: The folder that they were in, if it is known; if none of them is in the new one at the same place below,
            it is looked for.
    """
    probes = paths[:: max(1, len(paths) // MAX_PROBES)]
    if known is not None and any(
        _is_below(path, known) and os.path.lexists(moved_path(path, known, new)) for path in probes
    ):
        return known
    old = next(filter(None, (_old_root(path, new) for path in probes)), None)
    if old is None:
        example = f", such as {paths[0]}" if len(paths) else ""
        raise InputError(f"{new}: none of the {len(paths):,} images is in this folder{example}; say where they are")
    return old


def moved_path(path: str, old: str, new: str) -> str:
    """The new path of a file or folder in the moved folder `old`, or of `old` itself; others stay as they are.

    Example:
        >>> moved_path("/old/cat/1.png", "/old", "/new"), moved_path("/older/2.png", "/old", "/new")
        ('/new/cat/1.png', '/older/2.png')
    """
    return os.path.normpath(os.path.join(new, os.path.relpath(path, old))) if _is_below(path, old) else path


def shown_path(path: str, root: str | None) -> str:
    """A path as clients see it: from the folder of the images on, else the name of the file alone.

    Example:
        >>> shown_path("/photos/cups/1.jpg", "/photos"), shown_path("/elsewhere/2.jpg", "/photos")
        ('cups/1.jpg', '2.jpg')
    """
    prefix = os.path.join(root, "") if root else None
    return path[len(prefix) :] if prefix and path.startswith(prefix) else os.path.basename(path)


def _old_root(path: str, new: str) -> str | None:
    """The folder that a path was in, if an ending of it exists in the new one."""
    parts = PurePath(path).parts
    for start in range(1, len(parts)):
        if os.path.lexists(os.path.join(new, *parts[start:])):
            return os.path.join(*parts[:start])
    return None


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(os.path.join(folder, ""))
