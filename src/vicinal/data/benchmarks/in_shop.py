"""In-Shop Clothes Retrieval, a part of DeepFashion: photographs of clothes, with separate queries and gallery."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import pandas as pd

from vicinal.data.benchmarks.cache import check_complete, find_folder
from vicinal.data.benchmarks.lists import Row, box_columns, parse_box, read_list
from vicinal.data.table import Table
from vicinal.utils.errors import InputError

LIST, BOXES = "list_eval_partition.txt", "list_bbox_inshop.txt"
NAMES = ("in_shop", "In-shop Clothes Retrieval Benchmark", "In-shop_Clothes_Retrieval_Benchmark")
HINT = "download In-shop Clothes Retrieval from https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion.html and put it there"
PLACES = ("", "Eval", "Anno")
STATUS = ("train", "query", "gallery")


def in_shop(root: str | Path | None = None, images: Literal["img", "img_highres"] = "img") -> Table:
    """In-Shop (Liu et al., "DeepFashion", CVPR 2016): 25,882 training images, 14,218 queries, 12,612 gallery images.

    The classes are the items, 3,997 for training and 3,985 for testing; the coarse labels are their categories, such as
    `WOMEN/Dresses`. The published list assigns each image to training, queries or gallery; the last two are the split
    `test`, with the columns `is_query` and `is_gallery`. The bounding boxes are in the columns `box_x_1`, `box_y_1`,
    `box_x_2`, `box_y_2` if their file is there.

    Args:
        root: The folder of benchmarks; by default the environment variable VICINAL_DATA, else ~/.cache/vicinal. Its
            folder `in_shop` or `In-shop Clothes Retrieval Benchmark`, or itself, holds `list_eval_partition.txt` and
            `list_bbox_inshop.txt`, directly, in `Eval/` or in `Anno/`, and the folder `img`, directly or in `Img/`.
        images: The folder of images: `img`, of 256 x 256 pixels, or `img_highres`, to which the published bounding
            boxes do not belong.

    Raises:
        InputError: A file is missing, a line is not as published, or images are absent.
    """
    folder, marker = find_folder(root, NAMES, [str(Path(place, LIST)) for place in PLACES], HINT)
    frame = _frame(folder / marker)
    boxes = next((folder / place / BOXES for place in PLACES if (folder / place / BOXES).is_file()), None)
    if boxes is not None and images == "img":
        frame = frame.assign(**_boxes(boxes, frame["path"].tolist()))
    name = "in_shop" if images == "img" else "in_shop_highres"
    paths = [path.replace("img", images, 1) for path in frame["path"]]
    return check_complete(name, Table(frame.assign(path=paths), _parent(folder, images)), folder)


def in_shop_highres(root: str | Path | None = None) -> Table:
    """:func:`in_shop` with the images of high resolution, in the published folder `img_highres`."""
    return in_shop(root, "img_highres")


def _parent(folder: Path, images: str) -> Path:
    for parent in (folder, folder / "Img"):
        if (parent / images).is_dir():
            return parent
    benchmarks = {"img": "in_shop", "img_highres": "in_shop_highres"}
    other = next(name for name in benchmarks if name != images)
    is_there = any((parent / other).is_dir() for parent in (folder, folder / "Img"))
    hint = f"there is {other}, which is read as {benchmarks[other]}" if is_there else "download it, and put it there"
    raise InputError(f"{folder}: no folder {images}, nor one in Img/; {hint}")


def _rows(path: Path, num_fields: int) -> list[Row]:
    """Read a list whose first two lines hold the number of images and the names of the columns."""
    (_, number), _, *rows = read_list(path, (1, num_fields), 2)
    if number != [str(len(rows))]:
        raise InputError(f"{path}: names {number[0]} images in its first line, but has {len(rows)}; download it again")
    return rows


def _frame(path: Path) -> pd.DataFrame:
    rows = _rows(path, 3)
    for line, (name, _, status) in rows:
        if status not in STATUS:
            raise InputError(f"{path}, line {line}: {status!r}; an image is for train, query or gallery")
        if not re.fullmatch("img/[^/]+/[^/]+/.+", name):
            raise InputError(f"{path}, line {line}: {name!r}; a name is img/<gender>/<category>/<item>/<image>")
    frame = pd.DataFrame([fields for _, fields in rows], columns=["path", "label", "status"])
    status = frame.pop("status")
    return frame.assign(
        coarse=["/".join(path.split("/")[1:3]) for path in frame["path"]],
        split=status.where(status == "train", "test"),
        is_query=status == "query",
        is_gallery=status == "gallery",
    )


def _boxes(path: Path, images: list[str]) -> dict[str, tuple[float, ...]]:
    boxes = {name: parse_box(fields[2:], f"{path}, line {line}") for line, (name, *fields) in _rows(path, 7)}
    missing = [image for image in images if image not in boxes]
    if missing:
        raise InputError(
            f"{path}: no bounding box for {len(missing):,} images, such as {missing[0]}; download it again"
        )
    return box_columns(boxes[image] for image in images)
