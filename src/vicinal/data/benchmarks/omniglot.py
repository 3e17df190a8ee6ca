"""Omniglot's small background sets: real handwritten characters of several alphabets."""

from __future__ import annotations

import zipfile
import zlib
from functools import partial
from pathlib import Path, PurePosixPath

import pandas as pd

from vicinal.data.benchmarks.cache import cache_folder, prepare_folder, writable_root
from vicinal.data.table import Table
from vicinal.errors import InputError

# Each part: the folder it unpacks to, and the archives that hold it, the fullest first.
PARTS = {
    "images_background_small1": ("images_background_small1.zip",),
    "images_background_small2": ("images_background_small2.zip", "katakana.zip"),
}
SPLITS = {"Early_Aramaic": "val", "Greek": "test", "Balinese": "test"}  # every other alphabet is for training


def omniglot(root: str | Path | None = None, source: str | Path | None = None) -> Table:
    """Characters as classes, their alphabets as coarse labels (Lake et al., Science 350, 2015; MIT licence).

    The labels are `<alphabet>/<character>`. The split is by alphabet: val Early_Aramaic, test Greek and Balinese,
    train the others (Korean, Latin and Japanese_(katakana) with the files named below). Images are 105 x 105 pixels,
    black on white.

    Args:
        root: folder that keeps benchmarks; by default VICINAL_DATA of the environment, else ~/.cache/vicinal. Archives
            are unpacked to `omniglot` in it, or in the default folder where it must not be written.
        source: folder with the official archives `images_background_small1.zip` and `images_background_small2.zip` (of
            which `katakana.zip`, one alphabet, is enough), or with folders unpacked from them; by default `root`.

    Raises:
        InputError: a file is missing or is no sound archive.
    """
    root = cache_folder(root)
    source = root if source is None else Path(source)
    kept = writable_root(root, "omniglot") / "omniglot"
    frames = [Table.from_folder(_part(name, source, kept)).frame for name in PARTS]
    frame = pd.concat(frames, ignore_index=True)
    return Table(frame.assign(split=[SPLITS.get(alphabet, "train") for alphabet in frame["coarse"]]))


def _part(name: str, source: Path, kept: Path) -> Path:
    """The folder of one part: as it lies in the source, or unpacked from there, now or earlier."""
    if (source / name).is_dir():
        return source / name
    for archive in PARTS[name]:
        unpacked = kept / Path(archive).stem
        if (source / archive).is_file():
            prepare_folder(unpacked, name, partial(_unpack, source / archive, name=name))
        if (unpacked / name).is_dir():
            return unpacked / name
    raise InputError(
        f"{source}: no {' or '.join(PARTS[name])}, nor a folder {name}; download omniglot from "
        "https://github.com/brendenlake/omniglot (python) and put it there, or give its folder as root"
    )


def _unpack(path: Path, folder: Path, *, name: str) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            members = [member for member in archive.namelist() if member.endswith(".png")]
            for member in members:
                _refuse_foreign(path, member, name)
            archive.extractall(folder, members)
    except (zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, EOFError) as error:
        raise InputError(f"{path}: not a sound zip archive ({error}); download it again") from None
    if not (folder / name).is_dir():
        raise InputError(f"{path}: no images under {name}/ in this archive; download the official one")


def _refuse_foreign(path: Path, member: str, name: str) -> None:
    parts = PurePosixPath(member).parts
    if len(parts) != 4 or parts[0] != name or ".." in parts or "\\" in member:
        raise InputError(f"{path}: holds {member!r}; its images must be {name}/<alphabet>/<character>/<image>.png")
