"""Omniglot's small background sets: handwritten characters of several alphabets."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pandas as pd

from vicinal.data.benchmarks.cache import check_unchanged, prepare_folder, unpack_zip, writable_root
from vicinal.data.table import Table
from vicinal.utils.errors import InputError
from vicinal.utils.files import cache_folder

# The folder of each part, and the archives that hold it, the most complete first.
PARTS = {
    "images_background_small1": ("images_background_small1.zip",),
    "images_background_small2": ("images_background_small2.zip", "katakana.zip"),
}
SPLITS = {"Early_Aramaic": "val", "Greek": "test", "Balinese": "test"}  # all other alphabets are for training


def omniglot(root: str | Path | None = None, source: str | Path | None = None) -> Table:
    """Omniglot (Lake et al., Science 350, 2015; MIT licence): characters are classes, alphabets are coarse labels.

    The labels are `<alphabet>/<character>`. The splits are by alphabet: val Early_Aramaic, test Greek and Balinese,
    train the others (Korean, Latin and Japanese_(katakana) with the files named below). Images are 105 x 105 pixels,
    black on white.

    Args:
        root: The folder of benchmarks; by default the environment variable VICINAL_DATA, else ~/.cache/vicinal.
            Archives are extracted to `omniglot` in it, or in the default folder if it is not writable.
        source: A folder with the official archives `images_background_small1.zip` and `images_background_small2.zip`
            (`katakana.zip`, one alphabet, replaces the latter), or with folders extracted from them; by default `root`.

    Raises:
        InputError: A file is missing or is not a valid archive.
    """
    root = cache_folder(root)
    source = root if source is None else Path(source)
    cache = writable_root(root, "omniglot") / "omniglot"
    frames = [Table.from_folder(_part(name, source, cache)).frame for name in PARTS]
    frame = pd.concat(frames, ignore_index=True)
    return Table(frame.assign(split=[SPLITS.get(alphabet, "train") for alphabet in frame["coarse"]]))


def _part(name: str, source: Path, cache: Path) -> Path:
    """The folder of one part, in the source or extracted from an archive there, now or earlier."""
    if (source / name).is_dir():
        return source / name
    for archive in PARTS[name]:
        extracted = cache / Path(archive).stem
        if (source / archive).is_file():
            prepare_folder(extracted, name, partial(_extract, source / archive, name=name))
        else:
            check_unchanged(extracted)
        if (extracted / name).is_dir():
            return extracted / name
    raise InputError(
        f"{source}: no {' or '.join(PARTS[name])}, nor a folder {name}; download omniglot from "
        "https://github.com/brendenlake/omniglot (python) and put it there, or give its folder as root"
    )


def _extract(path: Path, folder: Path, *, name: str) -> None:
    layout = f"{name}/<alphabet>/<character>/<image>.png"
    unpack_zip(path, folder, (".png",), rf"{name}/[^/]+/[^/]+/[^/]+\.png", layout)
    if not (folder / name).is_dir():
        raise InputError(f"{path}: no images under {name}/ in this archive; download the official one")
