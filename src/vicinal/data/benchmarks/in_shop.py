"""In-Shop Clothes Retrieval, a part of DeepFashion: photographs of clothes, with queries and gallery apart."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from vicinal.data.benchmarks.cache import cache_folder
from vicinal.data.benchmarks.lists import list_rows
from vicinal.data.table import Table
from vicinal.errors import InputError

LIST = "list_eval_partition.txt"
STATUS = ("train", "query", "gallery")


def in_shop(root: str | Path | None = None) -> Table:
    """Items as classes (Liu et al., "DeepFashion", CVPR 2016): 25,882 for training; 14,218 queries, 12,612 to be found.

    The published list says of each image whether it is for training, a query or in the gallery; the last two are the
    split `test`, and are marked in `is_query` and `is_gallery`.

    Args:
        root: folder that keeps benchmarks; by default VICINAL_DATA of the environment, else ~/.cache/vicinal. In it
            `in_shop` has `list_eval_partition.txt`, right there or in `Eval/` as published, and the folder `img`, right
            there or in `Img/`.

    Raises:
        InputError: a file is missing, or a line of the list is not as published.
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
    """The list after its two first lines: how many images there are, and the names of the columns."""
    (_, number), _, *rows = list_rows(path, (1, 3), 2)
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
