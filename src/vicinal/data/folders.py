"""A folder of images as the rows of a table."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path, PurePath

import pandas as pd

from vicinal.data.columns import SPLITS, check_utf8
from vicinal.data.images.heif import HEIF_NEEDS, HEIF_SUFFIXES, reads_heif
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

IMAGE_SUFFIXES = (
    *(".avif", ".bmp", ".gif", ".jfif", ".jp2", ".jpeg", ".jpg", ".pbm", ".pgm"),
    *(".png", ".pnm", ".ppm", ".tga", ".tif", ".tiff", ".webp"),
)

UNREAD_SUFFIXES = (
    *(".arw", ".cr2", ".cr3", ".dng", ".eps", ".heic", ".heif", ".ico", ".jxl", ".mov", ".mp4", ".nef", ".orf"),
    *(".pdf", ".psd", ".raf", ".raw", ".rw2", ".svg"),
)
MAX_ENTRIES = 50_000_000  # of a folder and all below: several times as many as the largest datasets have
MAX_VISITS = 16  # of one folder, by links to it


def read_folder(folder: str | Path) -> tuple[pd.DataFrame, dict[str, int]]:
    """List the images in a folder: `path`, and from the folder names `label`, `coarse`, `coarse_2`, ... and `split`.

    Images at different depths are not sorted by class and have no labels, which is logged, as are the number of files
    of other image formats and the folders without images.

    Returns:
        The images, and the number of other files by suffix; those without one are under "".

    Raises:
        InputError: The folder does not exist or holds no image, a name is not UTF-8, or the folder holds too much to be
            walked.
    """
    if not str(folder):
        raise InputError("the name of the folder is empty; give a folder of images")
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: {'is a file, not a folder' if folder.exists() else 'no such folder'}")
    files, others, without_images = find_images(folder)
    unread = {suffix: number for suffix, number in others.items() if suffix in UNREAD_SUFFIXES}
    left_out = ", ".join(f"{number:,} {suffix}" for suffix, number in sorted(unread.items()))
    hint = f"; {HEIF_NEEDS}" if set(HEIF_SUFFIXES) & set(unread) else ""
    if not files:
        there = f"; there are {left_out}{hint}" if left_out else ""
        raise InputError(f"{folder}: no image in this folder or below (known are {', '.join(IMAGE_SUFFIXES)}){there}")
    if left_out:
        log(f"{folder}: left out files of formats that are not read: {left_out}{hint}")
    if without_images:
        log(f"{folder}: no image in {_these(without_images)}")
    for file in files:
        check_utf8(os.path.join(folder, file), "folder of images")
    parents = [PurePath(file).parent.parts for file in files]
    columns = {"path": [os.path.join(folder, file) for file in files]}
    if _has_split_folders(folder, parents):
        columns["split"] = [parts[0] for parts in parents]
        parents = [parts[1:] for parts in parents]
    return pd.DataFrame({**columns, **_label_columns(folder, files, parents)}), dict(sorted(others.items()))


def find_images(folder: Path) -> tuple[list[str], Counter[str], list[str]]:
    """The images below a folder, how many other files there are, and the folders without images.

    Hidden entries are skipped. Links are followed, but to no folder that the link is in, and to no folder more than
    MAX_VISITS times.

    Returns:
        The images as sorted relative paths, the number of other files by suffix, and the sorted relative paths of the
        folders with no image in them or below; of those inside one another, only the outermost.

    Raises:
        InputError: There are more than MAX_ENTRIES entries, as on a whole disk.
    """
    found: list[str] = []
    others: Counter[str] = Counter()
    visits: Counter[str] = Counter()
    visited: list[str] = []
    num_entries = 0
    pending: list[tuple[str, tuple[str, ...]]] = [(os.fspath(folder), (os.path.realpath(folder),))]
    while pending:
        current, ancestors = pending.pop()
        visited.append(current)
        for entry in _visible_entries(current):
            num_entries += 1
            if _is_folder(entry):
                target = os.path.realpath(entry.path)
                visits[target] += 1
                if not _is_cycle(target, ancestors) and visits[target] <= MAX_VISITS:
                    pending.append((entry.path, (*ancestors, target)))
            elif is_image_file(entry.name):
                found += [entry.path] if _is_file_or_dangling_link(entry) else []
            else:
                others[os.path.splitext(entry.name)[1].lower()] += 1
        if num_entries > MAX_ENTRIES:
            raise InputError(f"{folder}: holds more than {MAX_ENTRIES:,} files and folders; give a folder of images")
    files = sorted((os.path.relpath(file, folder) for file in found), key=lambda file: PurePath(file).parts)
    return files, others, _without_images(folder, visited, found)


def _without_images(folder: Path, visited: list[str], images: list[str]) -> list[str]:
    """The outermost of the visited folders below which no image lies, relative to the folder that was walked."""
    top = os.fspath(folder)
    with_images = {top}
    for parent in {os.path.dirname(file) for file in images}:
        while parent not in with_images:
            with_images.add(parent)
            parent = os.path.dirname(parent)
    empty = (each for each in visited if each not in with_images and os.path.dirname(each) in with_images)
    return sorted(os.path.relpath(each, top) for each in empty)


def _these(folders: list[str]) -> str:
    """Few folders by name, many by their number and the first of them."""
    return ", ".join(folders) if len(folders) <= 3 else f"{len(folders):,} folders, such as {folders[0]}"


def _visible_entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except (PermissionError, FileNotFoundError):  # such as lost+found at the top of a disk, or one deleted meanwhile
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _is_file_or_dangling_link(entry: os.DirEntry[str]) -> bool:
    """False for pipes and devices, whose reading might not end. Reading a dangling link later gives a clear error."""
    try:
        return entry.is_file() or not os.path.exists(entry.path)
    except OSError:  # a link to itself
        return True


def _is_cycle(target: str, ancestors: tuple[str, ...]) -> bool:
    """Whether a folder is or contains one of the folders on the way to it, so that walking it would not end."""
    return any(os.path.commonpath([target, ancestor]) == target for ancestor in ancestors)


def is_image_file(path: str | Path) -> bool:
    """Whether the name ends like that of an image file."""
    suffix = os.path.splitext(path)[1].lower()
    return suffix in IMAGE_SUFFIXES or (suffix in HEIF_SUFFIXES and reads_heif())


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
            log(
                f"{folder}: {files[0]} and {file} lie at different depths, so the images have no labels; for labels, "
                "every image belongs in the folder of its class, and all classes at the same depth"
            )
            return {}
    names = ["label", "coarse", *(f"coarse_{level}" for level in range(2, depth))]
    return {name: ["/".join(parts[: depth - up]) for parts in parents] for up, name in enumerate(names[:depth])}
