"""In-Shop Clothes Retrieval, a part of DeepFashion: photographs of clothes, with separate queries and gallery."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from vicinal.data.benchmarks.cache import cache_folder
from vicinal.data.benchmarks.lists import read_list
from vicinal.data.table import Table
from vicinal.utils.errors import InputError

LIST = "list_eval_partition.txt"
STATUS = ("train", "query", "gallery")


def in_shop(root: str | Path | None = None) -> Table:
    """In-Shop (Liu et al., "DeepFashion", CVPR 2016): 25,882 training images, 14,218 queries, 12,612 gallery images.

    The classes are the items. The published list assigns each image to training, queries or gallery; the last two are
    the split `test`, with the columns `is_query` and `is_gallery`.

    Args:
        root: The folder of benchmarks; by default the environment variable VICINAL_DATA, else ~/.cache/vicinal. Its
            folder `in_shop` holds `list_eval_partition.txt`, directly or in `Eval/` as published, and the folder `img`,
            directly or in `Img/`.

    Raises:
        InputError: A file is missing, or a line of the list is not as published.
    """
    folder = cache_folder(root) / "in_shop"
    path = next((path for path in (folder / LIST, folder / "Eval" / LIST) if path.is_file()), None)
    if path is None:
        raise InputError(
            f"{folder}: no {LIST}, nor one in Eval/; download In-shop Clothes Retrieval from "
            "https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion.html and put it there, or give the folder above as root"
        )
    images = folder if (folder / "img").is_dir() else folder / "Img"
    return Table(_frame(path), images)


def _frame(path: Path) -> pd.DataFrame:
    """Read the list, whose first two lines hold the number of images and the names of the columns."""
    (_, number), _, *rows = read_list(path, (1, 3), 2)
    for line, (_, _, status) in rows:
        if status not in STATUS:
            raise InputError(f"{path}, line {line}: {status!r}; an image is for train, query or gallery")
    if number != [str(len(rows))]:
        raise InputError(f"{path}: names {number[0]} images in its first line, but has {len(rows)}; download it again")
    frame = pd.DataFrame([cells for _, cells in rows], columns=["path", "label", "status"])
    status = frame.pop("status")
    return frame.assign(
        split=status.where(status == "train", "test"), is_query=status == "query", is_gallery=status == "gallery"
    )
