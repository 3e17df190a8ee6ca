"""A folder of images as the rows of a table."""

from __future__ import annotations

import os
from pathlib import Path, PurePath

import pandas as pd

from vicinal.data.columns import SPLITS, require_utf8
from vicinal.errors import InputError

IMAGE_SUFFIXES = (
    *(".avif", ".bmp", ".gif", ".jp2", ".jpeg", ".jpg", ".pbm", ".pgm"),
    *(".png", ".pnm", ".ppm", ".tga", ".tif", ".tiff", ".webp"),
)


def folder_frame(folder: str | Path) -> pd.DataFrame:
    """One row an image: `path`, and as the folders tell `label`, `coarse`, `coarse_2`, ... and `split`.

    Raises:
        InputError: no such folder, no image in it, a name that is not UTF-8, or images at different depths.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: {'is a file, not a folder' if folder.exists() else 'no such folder'}")
    files = image_files(folder)
    if not files:
        raise InputError(f"{folder}: no image in this folder or below (known are {', '.join(IMAGE_SUFFIXES)})")
    for file in files:
        require_utf8(os.path.join(folder, file), "folder of images")
    places = [PurePath(file).parent.parts for file in files]
    columns = {"path": [os.path.join(folder, file) for file in files]}
    if _has_split_folders(folder, places):
        columns["split"] = [place[0] for place in places]
        places = [place[1:] for place in places]
    return pd.DataFrame({**columns, **_label_columns(folder, files, places)})


def image_files(folder: Path) -> list[str]:
    """The images below the folder, relative to it and sorted; what is hidden is passed over, links are followed."""
    found = []
    waiting: list[tuple[str, tuple[str, ...]]] = [(os.fspath(folder), (os.path.realpath(folder),))]
    while waiting:
        place, passed = waiting.pop()
        for entry in _visible(place):
            if not entry.is_dir():
                found += [entry.path] if is_image_file(entry.name) and _is_file_or_lost(entry) else []
            elif not _leads_back(real := os.path.realpath(entry.path), passed):
                waiting.append((entry.path, (*passed, real)))
    return sorted((os.path.relpath(file, folder) for file in found), key=lambda file: PurePath(file).parts)


def _visible(place: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(place) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except PermissionError:  # such as lost+found at the top of a disk
        return []


def _is_file_or_lost(entry: os.DirEntry[str]) -> bool:
    """Not a pipe or device, which might be read without end; a link to nothing is kept, for its reading to name it."""
    return entry.is_file() or not os.path.exists(entry.path)


def _leads_back(target: str, passed: tuple[str, ...]) -> bool:
    """Whether a folder is, or holds, one of those passed on the way to it: it would be walked without end."""
    return any(os.path.commonpath([target, real]) == target for real in passed)


def is_image_file(path: str | Path) -> bool:
    """Whether the name is that of an image file, going by its ending."""
    return os.path.splitext(path)[1].lower() in IMAGE_SUFFIXES


def _has_split_folders(folder: Path, places: list[tuple[str, ...]]) -> bool:
    top = {place[0] if place else "" for place in places}
    named = top.intersection(SPLITS)
    if len(named) > 1 and top - named:
        other = min(top - named) or "images"
        raise InputError(
            f"{folder}: holds {other} beside the split folders {', '.join(sorted(named))}; "
            "either all images lie in train, val and test or none do"
        )
    return top == named


def _label_columns(folder: Path, files: list[str], places: list[tuple[str, ...]]) -> dict[str, list[str]]:
    """The class is the whole path of folders, for the same name may stand in two; coarse is all but the last."""
    depth = len(places[0])
    for file, place in zip(files, places, strict=True):
        if len(place) != depth:
            raise InputError(
                f"{folder}: {files[0]} and {file} lie at different depths; every image belongs in the folder of its "
                "class, and all classes at the same depth"
            )
    names = ["label", "coarse", *(f"coarse_{level}" for level in range(2, depth))]
    return {name: ["/".join(place[: depth - up]) for place in places] for up, name in enumerate(names[:depth])}
