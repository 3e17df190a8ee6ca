"""A folder of images as the rows of a table."""

from __future__ import annotations

import os
from pathlib import Path, PurePath

import pandas as pd

from vicinal.data.columns import SPLITS, check_utf8
from vicinal.utils.errors import InputError

IMAGE_SUFFIXES = (
    *(".avif", ".bmp", ".gif", ".jp2", ".jpeg", ".jpg", ".pbm", ".pgm"),
    *(".png", ".pnm", ".ppm", ".tga", ".tif", ".tiff", ".webp"),
)


def read_folder(folder: str | Path) -> pd.DataFrame:
    """List the images in a folder: `path`, and from the folder names `label`, `coarse`, `coarse_2`, ... and `split`.

    Raises:
        InputError: The folder does not exist or holds no image, a name is not UTF-8, or images are at different depths.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: {'is a file, not a folder' if folder.exists() else 'no such folder'}")
    files = find_images(folder)
    if not files:
        raise InputError(f"{folder}: no image in this folder or below (known are {', '.join(IMAGE_SUFFIXES)})")
    for file in files:
        check_utf8(os.path.join(folder, file), "folder of images")
    parents = [PurePath(file).parent.parts for file in files]
    columns = {"path": [os.path.join(folder, file) for file in files]}
    if _has_split_folders(folder, parents):
        columns["split"] = [parts[0] for parts in parents]
        parents = [parts[1:] for parts in parents]
    return pd.DataFrame({**columns, **_label_columns(folder, files, parents)})


def find_images(folder: Path) -> list[str]:
    """The images below a folder, as sorted relative paths. Hidden entries are skipped, links are followed."""
    found = []
    pending: list[tuple[str, tuple[str, ...]]] = [(os.fspath(folder), (os.path.realpath(folder),))]
    while pending:
        current, ancestors = pending.pop()
        for entry in _visible_entries(current):
            if not entry.is_dir():
                found += [entry.path] if is_image_file(entry.name) and _is_file_or_dangling_link(entry) else []
            elif not _is_cycle(target := os.path.realpath(entry.path), ancestors):
                pending.append((entry.path, (*ancestors, target)))
    return sorted((os.path.relpath(file, folder) for file in found), key=lambda file: PurePath(file).parts)


def _visible_entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except PermissionError:  # such as lost+found at the top of a disk
        return []


def _is_file_or_dangling_link(entry: os.DirEntry[str]) -> bool:
    """False for pipes and devices, whose reading might not end. Reading a dangling link later gives a clear error."""
    return entry.is_file() or not os.path.exists(entry.path)


def _is_cycle(target: str, ancestors: tuple[str, ...]) -> bool:
    """Whether a folder is or contains one of the folders on the way to it, so that walking it would not end."""
    return any(os.path.commonpath([target, ancestor]) == target for ancestor in ancestors)


def is_image_file(path: str | Path) -> bool:
    """Whether the name ends like that of an image file."""
    return os.path.splitext(path)[1].lower() in IMAGE_SUFFIXES


def _has_split_folders(folder: Path, parents: list[tuple[str, ...]]) -> bool:
    top = {parts[0] if parts else "" for parts in parents}
    splits = top.intersection(SPLITS)
    if len(splits) > 1 and top - splits:
        other = min(top - splits) or "images"
        raise InputError(
            f"{folder}: holds {other} beside the split folders {', '.join(sorted(splits))}; "
            "either all images lie in train, val and test or none do"
        )
    return top == splits


def _label_columns(folder: Path, files: list[str], parents: list[tuple[str, ...]]) -> dict[str, list[str]]:
    """The label is the whole path of folders, since one name may be in two of them; `coarse` is all but the last."""
    depth = len(parents[0])
    for file, parts in zip(files, parents, strict=True):
        if len(parts) != depth:
            raise InputError(
                f"{folder}: {files[0]} and {file} lie at different depths; every image belongs in the folder of its "
                "class, and all classes at the same depth"
            )
    names = ["label", "coarse", *(f"coarse_{level}" for level in range(2, depth))]
    return {name: ["/".join(parts[: depth - up]) for parts in parents] for up, name in enumerate(names[:depth])}
