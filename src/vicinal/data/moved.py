"""Images that were moved to another folder, with the folders below it as they were."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePath

from vicinal.utils.errors import InputError

MAX_PROBES = 1000  # images that are looked for in the new folder


def move_root(paths: Sequence[str], root: str | Path) -> list[str]:
    """Replace the folder that images were in by the one that they are in now.

    The old folder needs no name: it is what precedes the longest ending of a path that exists in the new folder. Paths
    that do not begin with it stay as they are.

    Args:
        paths: Absolute paths of the images.
        root: The new folder.

    Returns:
        The new paths.

    Raises:
        InputError: None of the images is in the new folder.

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
    step = max(1, len(paths) // MAX_PROBES)
    old = next(filter(None, (_old_root(path, new) for path in paths[::step])), None)
    if old is None:
        example = f", such as {paths[0]}" if len(paths) else ""
        raise InputError(f"{root}: none of the {len(paths):,} images is in this folder{example}; say where they are")
    return [os.path.join(new, os.path.relpath(path, old)) if _is_below(path, old) else path for path in paths]


def _old_root(path: str, new: str) -> str | None:
    """The folder that a path was in, if an ending of it exists in the new one."""
    parts = PurePath(path).parts
    for start in range(1, len(parts)):
        if os.path.lexists(os.path.join(new, *parts[start:])):
            return os.path.join(*parts[:start])
    return None


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(os.path.join(folder, ""))
