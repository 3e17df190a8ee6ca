"""A folder of images as the rows of a table."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path, PurePath
from typing import NamedTuple

import pandas as pd

from vicinal.data.columns import SPLIT_NAMES, check_utf8
from vicinal.data.images.formats import HEIF_NEEDS, HEIF_SUFFIXES, IMAGE_SUFFIXES, UNREAD_SUFFIXES, is_image_file
from vicinal.utils.console import counted, log
from vicinal.utils.errors import InputError

MAX_VISITS = 16  # of one folder, by links to it


class FoundFiles(NamedTuple):
    """The files below a folder: images and folders without one as sorted relative paths, and other files by suffix.

    Of nested folders without images, only the outermost is listed. `unlisted` has the system's reason for each folder
    that could not be listed.
    """

    images: list[str]
    others: dict[str, int]
    without_images: list[str]
    unlisted: dict[str, str]


def read_folder(folder: str | Path) -> tuple[pd.DataFrame, FoundFiles]:
    """List the images in a folder: `path`, and from the folder names `label`, `coarse`, `coarse_2`, ... and `split`.

    Images at different depths are not sorted by class and have no labels, which is logged, as are the number of files
    of other image formats, names that are not UTF-8, and the folders without images or that cannot be listed.
    """
    if not str(folder):
        raise InputError("the name of the folder is empty; give a folder of images")
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: {'is a file, not a folder' if folder.exists() else 'no such folder'}")
    found = find_images(folder)
    files = found.images
    unread = {suffix: number for suffix, number in found.others.items() if suffix in UNREAD_SUFFIXES}
    left_out = ", ".join(f"{number:,} {suffix}" for suffix, number in sorted(unread.items()))
    hint = f"; {HEIF_NEEDS}" if set(HEIF_SUFFIXES) & set(unread) else ""
    if os.fspath(folder) in found.unlisted:
        raise InputError(f"{folder}: {found.unlisted[os.fspath(folder)]}")
    for each, reason in found.unlisted.items():
        log(f"{each}: {reason}; the images in this folder are left out")
    if not files:
        there = f"; there are {left_out}{hint}" if left_out else ""
        raise InputError(f"{folder}: no image in this folder or below (known are {', '.join(IMAGE_SUFFIXES)}){there}")
    if left_out:
        log(f"{folder}: left out files of unsupported formats: {left_out}{hint}")
    if found.without_images:
        log(f"{folder}: no image in {_these(found.without_images)}")
    files = _named_in_utf8(folder, files)
    parents = [PurePath(file).parent.parts for file in files]
    columns = {"path": [os.path.join(folder, file) for file in files]}
    if _has_split_folders(folder, parents):
        columns["split"] = [SPLIT_NAMES[parts[0].lower()] for parts in parents]
        parents = [parts[1:] for parts in parents]
    else:
        _warn_of_repeated_folders(folder, parents)
    return pd.DataFrame({**columns, **_label_columns(folder, files, parents)}), found


def _named_in_utf8(folder: Path, files: list[str]) -> list[str]:
    """The files whose names a table can hold, which is UTF-8; the others are logged."""
    check_utf8(os.fspath(folder), "folder of images")
    named, others = [], []
    for file in files:
        try:
            check_utf8(file, os.fspath(folder))
            named.append(file)
        except InputError as error:
            others.append(str(error))
    if others:
        log(f"left out {counted(len(others), 'image')} by the name: {others[0]}")
    if not named:
        raise InputError(others[0])
    return named


def find_images(folder: Path) -> FoundFiles:
    """The images below a folder, other files, folders without images, and those that cannot be listed.

    Hidden entries are skipped. Links are followed, but to no folder that the link is in, and to no folder more than
    MAX_VISITS times.
    """
    images: list[str] = []
    unlisted: dict[str, str] = {}
    visited: list[str] = []
    others, visits = Counter[str](), Counter[str]()

    def is_walked(parent: str, name: str) -> bool:
        path = os.path.join(parent, name)
        if name.startswith(".") or not os.path.islink(path):
            return not name.startswith(".")
        target = os.path.realpath(path)
        visits[target] += 1
        return visits[target] <= MAX_VISITS and not _is_cycle(target, parent)

    def leave_out(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # deleted meanwhile
            unlisted[os.fspath(error.filename)] = (error.strerror or str(error)).lower()

    for current, folders, files in os.walk(folder, onerror=leave_out, followlinks=True):
        visited.append(current)
        folders[:] = [name for name in folders if is_walked(current, name)]
        for name in files:
            path = os.path.join(current, name)
            if name.startswith("."):
                continue
            if is_image_file(name):
                images += [path] if os.path.isfile(path) or not os.path.exists(path) else []  # no pipes; dangling links
            elif os.path.islink(path) and not os.path.exists(path):  # perhaps to a folder that is not mounted
                unlisted[path] = "a broken link"
            else:
                others[os.path.splitext(name)[1].lower()] += 1
    relative = sorted((os.path.relpath(file, folder) for file in images), key=lambda file: PurePath(file).parts)
    return FoundFiles(relative, dict(sorted(others.items())), _without_images(folder, visited, images), unlisted)


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
    return ", ".join(folders) if len(folders) <= 3 else f"{len(folders):,} folders, such as {folders[0]}"


def _is_cycle(target: str, parent: str) -> bool:
    ways = (parent, *map(str, PurePath(parent).parents))
    return any(os.path.commonpath([target, os.path.realpath(way)]) == target for way in ways)


def _has_split_folders(folder: Path, parents: list[tuple[str, ...]]) -> bool:
    """Whether the top folders are splits, by their names; names other than train, val and test are logged."""
    top = {parts[0] if parts else "" for parts in parents}
    splits = {name for name in top if name.lower() in SPLIT_NAMES}
    if len(splits) > 1 and top - splits:
        other = min(top - splits) or "images"
        raise InputError(
            f"{folder}: holds {other} beside the split folders {', '.join(sorted(splits))}; "
            "either all images lie in train, val and test or none do"
        )
    meant = [f"{name} as {SPLIT_NAMES[name.lower()]}" for name in sorted(splits) if name != SPLIT_NAMES[name.lower()]]
    if top == splits and meant:
        log(f"{folder}: read the folders of splits {', '.join(meant)}")
    return top == splits


def _warn_of_repeated_folders(folder: Path, parents: list[tuple[str, ...]]) -> None:
    """Log how the folders were read where every top folder holds the same folders, as parts of one dataset do."""
    below: dict[str, set[str]] = {}
    for parts in parents:
        below.setdefault(parts[0] if parts else "", set()).add(parts[1] if len(parts) > 1 else "")
    tops = sorted(below)
    names = sorted(below[tops[0]])
    if len(tops) > 1 and len(names) > 1 and all(below[top] == set(names) for top in tops):
        log(
            f"warning: {folder}: {', '.join(tops[:3])}{' ...' * (len(tops) > 3)} hold the same folders, so "
            f"{tops[0]}/{names[-1]} and {tops[1]}/{names[-1]} are two classes; if they are one, call the upper folders "
            "train, val and test, or give a table with a column label"
        )


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
