"""Images that were moved to another folder with the same folders below it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePath

from vicinal.utils.errors import InputError

MAX_PROBES = 1000  # images that are looked for in the new folder

ADDED = "added"  # the folder, within that of an index, of images that clients of a service added


def image_file(path: str, folder: Path) -> Path:
    """The file of an image; one that a client added is in the folder of the index, wherever that was moved."""
    file = Path(path)
    return folder / ADDED / file.name if file.parent.name == ADDED and not file.is_file() else file


def move_root(paths: Sequence[str], root: str | Path) -> list[str]:
    """Replace the old folder in the absolute paths of images by the folder that they are in now.

    The old folder is found: it is the part of a path before its longest ending that exists in the new folder. Paths
    that do not begin with it stay as they are.
    """
    new = os.path.abspath(root)
    old = find_old_root(paths, new)
    return [moved_path(path, old, new) for path in paths]


def find_old_root(paths: Sequence[str], new: str, known: str | None = None) -> str:
    """The old folder of images that are in the folder `new` now.

    It is `known`, unless none of them is in the new folder at the same place below it; then it is found by their paths.
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
    """The new path of a file or folder in the moved folder `old`, or of `old` itself; others stay as they are."""
    return os.path.normpath(os.path.join(new, os.path.relpath(path, old))) if _is_below(path, old) else path


def shown_path(path: str, root: str | None) -> str:
    """A path as clients see it: from the folder of the images on, else the name of the file alone."""
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
