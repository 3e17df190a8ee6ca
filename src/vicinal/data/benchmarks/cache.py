"""The folder of benchmark datasets: the place of each, the files written there, and whether a copy is complete."""

from __future__ import annotations

import os
import re
import stat
import zipfile
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import pandas as pd
from filelock import FileLock

from vicinal.data.columns import check_utf8
from vicinal.data.table import Table
from vicinal.data.table_files import write_table
from vicinal.utils.console import log
from vicinal.utils.errors import InputError
from vicinal.utils.files import DIGESTS, cache_folder, changed_file, replace_folder, write_digests

TABLE = "table.csv"
MAX_NAMES = 8  # of files that a message lists
Count = tuple[int | None, int | None]
"""Numbers of images and classes; None for a number that is not published."""
_VEHICLES: list[Count] = [(110_178, 13_134), (113_346, 13_164)]  # the paper, and the list that is handed out
COUNTS: dict[str, dict[str, Count | list[Count]]] = {
    "cub": {"train": (5_864, 100), "test": (5_924, 100)},
    "cars": {"train": (8_054, 98), "test": (8_131, 98)},
    "sop": {"train": (59_551, 11_318), "test": (60_502, 11_316)},
    "in_shop": {"train": (25_882, 3_997), "test": (26_830, 3_985)},
    "in_shop_highres": {"train": (25_882, 3_997), "test": (26_830, 3_985)},
    "inaturalist_2018": {"train": (325_846, 5_690), "test": (136_093, 2_452)},
    "mini_inaturalist_2021": {"train": (250_150, 5_003), "test": (249_850, 4_997)},
    "vehicle_id": {"train": _VEHICLES, "test": (None, 2_400)},
    "vehicle_id_medium": {"train": _VEHICLES, "test": (None, 1_600)},
    "vehicle_id_small": {"train": _VEHICLES, "test": (None, 800)},
    "mnist": {"train": (60_000, 10), "test": (10_000, 10)},
    "fashion_mnist": {"train": (60_000, 10), "test": (10_000, 10)},
    "kmnist": {"train": (60_000, 10), "test": (10_000, 10)},
    "grocery": {"train": (2_179, 31), "val": (642, 10), "test": (1_234, 20)},
    "sfm_120k": {"train": (91_642, None), "val": (6_403, None)},
    "landmarks_v2": {"train": (1_580_470, 81_313)},
    "landmarks_v2_full": {"train": (4_132_914, 203_094)},
    "landmarks_v2_retrieval": {"test": (761_757 + 1_129, None)},
    "met": {"train": (397_121, 224_408)},
    "cars98n": {"train": (9_558, 98)},
    "food_101n": {"test": (51_000, 51)},
}
"""The published numbers of images and classes in each split of a benchmark; a list if there are several versions."""


def writable_root(root: Path, benchmark: str) -> Path:
    """The root, or the default folder if the root or the folder of the benchmark in it is not writable."""
    return root if _is_writable(root) and _is_writable(root / benchmark) else cache_folder()


def _is_writable(folder: Path) -> bool:
    """Whether the folder, or its first existing parent, has a write permission; it also binds the superuser."""
    while not folder.exists():
        folder = folder.absolute().parent
    return bool(folder.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)) and os.access(folder, os.W_OK)


def prepare_table(folder: Path, write: Callable[[Path], pd.DataFrame]) -> Table:
    """The table of a benchmark whose images `write` writes into a folder on the first call; its paths are relative."""

    def fill(new: Path) -> None:
        write_table(new / TABLE, write(new))

    prepare_folder(folder, TABLE, fill)
    return Table.from_csv(folder / TABLE)


def prepare_folder(folder: Path, marker: str, fill: Callable[[Path], None], recursive: bool = True) -> None:
    """Fill a folder once and atomically, even if several processes call this at the same time or one is killed.

    It is filled again if its files have changed; those in folders below are compared only if `recursive`. The `marker`
    is a file or folder in it that exists when it is complete.
    """
    if _is_whole(folder, marker):
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / f".{folder.name}.lock"):
            if _is_whole(folder, marker):
                return
            if (folder / DIGESTS).exists():
                log(f"{changed_file(folder) or folder / marker} has changed or is damaged")
            elif folder.exists() and any(folder.iterdir()):
                raise InputError(f"{folder}: a benchmark needs an empty folder, and this is not; choose another root")
            log(f"preparing {folder}")
            with replace_folder(folder) as new:
                fill(new)
                write_digests(new, recursive)
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(
            f"{folder}: cannot be written ({reason}); choose another root, or another folder by VICINAL_DATA"
        ) from error


def _is_whole(folder: Path, marker: str) -> bool:
    """Whether a folder is complete, and unchanged where it was filled by :func:`prepare_folder`."""
    return (folder / marker).exists() and (not (folder / DIGESTS).exists() or changed_file(folder) is None)


def check_unchanged(folder: Path) -> None:
    """Raise InputError if a folder was filled by :func:`prepare_folder`, and its files have changed."""
    if (folder / DIGESTS).exists() and (file := changed_file(folder)) is not None:
        raise InputError(f"{file} has changed or is damaged; delete the folder {folder} to rebuild it")


def unpack_zip(path: Path, folder: Path, suffixes: tuple[str, ...], pattern: str, layout: str) -> None:
    """Unpack the files of a zip archive whose names have some endings, such as `.png`.

    Their whole names, with folders, must match the regular expression `pattern`; `layout` describes it in words.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.namelist() if member.endswith(suffixes)]
            for member in members:
                if not re.fullmatch(pattern, member) or ".." in member.split("/") or "\\" in member:
                    raise InputError(f"{path}: holds {member!r}; its images must be {layout}")
                check_utf8(member, str(path))
            archive.extractall(folder, members)
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError) as error:
        raise InputError(f"{path}: not a valid zip archive ({error}); download it again") from None


def find_folder(root: str | Path | None, names: Sequence[str], markers: Sequence[str], hint: str) -> tuple[Path, str]:
    """Find the folder of a benchmark and the first of its markers in it.

    The folder is `root/NAME` for one of the names, or `root` itself, so that an archive can be unpacked into the root,
    or its folder can be given as the root. Archives that lie in a folder of the benchmark's own name are found too.

    Args:
        root: The folder of benchmarks; by default the environment variable VICINAL_DATA, else ~/.cache/vicinal.
        names: The folders that may hold the benchmark: its name here, then those of the published archives.
        markers: Files or folders, relative to the folder of the benchmark, any of which identifies it.
        hint: What to do if there is none, such as where to download it.
    """
    top = cache_folder(root)
    folders = [*(top / name for name in names), *(top / names[0] / name for name in names[1:]), top]
    found = [(folder, marker) for folder in folders for marker in markers if (folder / marker).exists()]
    if found:
        return found[0]
    here = next(folder for folder in folders if folder.is_dir() or folder == top)
    raise InputError(
        f"{top}: no {' or '.join(markers)} in {', '.join(f'{name}/' for name in names)} or the folder itself; "
        f"{_content(here, top)}; {hint}, or give the folder that holds it as root"
    )


def _content(folder: Path, root: Path) -> str:
    name = "it" if folder == root else f"{folder.relative_to(root)}/"
    try:
        entries = sorted(entry for entry in os.listdir(folder) if not entry.startswith("."))
    except OSError as error:
        return f"{name} cannot be read ({(error.strerror or str(error)).lower()})"
    more = f" and {len(entries) - MAX_NAMES} more" if len(entries) > MAX_NAMES else ""
    return f"{name} holds {', '.join(entries[:MAX_NAMES]) + more if entries else 'nothing'}"


def check_complete(name: str, table: Table, folder: Path) -> Table:
    """Return the table of a benchmark if its copy has all images and, with an entry in `COUNTS`, their published
    numbers.
    """
    check_counts(name, table, folder)
    check_images(table.paths, folder)
    return table


def check_counts(name: str, table: Table, folder: Path) -> None:
    """Check the numbers of images and classes as :func:`check_complete` does, but not whether the images exist."""
    for split, published in COUNTS.get(name, {}).items():
        versions = published if isinstance(published, list) else [published]
        part = table.subset(split) if split in table.splits else None
        found = (0, 0) if part is None else (len(part), len(part.classes))
        if not any(images in (found[0], None) and classes in (found[1], None) for images, classes in versions):
            raise InputError(
                f"{folder}: the split {split} of {name} has {found[0]:,} images of {found[1]:,} classes, but "
                f"{' or '.join(map(_describe, versions))} are published; the copy is partial or another version"
            )


def _describe(count: Count) -> str:
    images, classes = count
    if images is None:
        return f"{classes:,} classes"
    return f"{images:,} images" if classes is None else f"{images:,} of {classes:,}"


def check_images(paths: Sequence[str], folder: Path) -> None:
    """Raise InputError, with the number of absent images and the first three, unless all exist."""

    @cache
    def names(directory: str) -> frozenset[str]:  # one listing per directory is far faster than one lookup per image
        try:
            return frozenset(os.listdir(directory))
        except OSError:
            return frozenset()

    absent = [path for path in paths if os.path.basename(path) not in names(os.path.dirname(path))]
    if absent:
        first = ", ".join(os.path.relpath(path, folder) for path in absent[:3])
        more = ", ..." if len(absent) > 3 else ""
        raise InputError(f"{folder}: {len(absent):,} of {len(paths):,} images in its lists are missing: {first}{more}")
