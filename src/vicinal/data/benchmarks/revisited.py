"""ROxford and RParis: images of landmarks, with the easy, hard and junk images of every query.

The published files (Radenovic et al., "Revisiting Oxford and Paris", CVPR 2018; http://cmp.felk.cvut.cz/revisitop) are
a folder `roxford5k` or `rparis6k` with the images in `jpg/` and the ground truth `gnd_roxford5k.pkl` or
`gnd_rparis6k.pkl`. A file `gnd_roxford5k.json` of the same structure is used first if it exists. The distractors R1M
are a folder `revisitop1m` with the list `revisitop1m.txt` and the images in `jpg/`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vicinal.data.benchmarks.cache import check_images, find_folder, prepare_folder, writable_root
from vicinal.data.benchmarks.lists import read_json, read_list, read_plain_pickle
from vicinal.data.columns import Box
from vicinal.data.images.decoding import read_image
from vicinal.data.table import Table
from vicinal.utils.arguments import is_number
from vicinal.utils.arrays import Doubles, Integers
from vicinal.utils.errors import InputError, prefixed_errors
from vicinal.utils.files import cache_folder

LISTS = ("easy", "hard", "junk")
FOLDERS = {"roxford": "roxford5k", "rparis": "rparis6k"}
DISTRACTORS, NUM_DISTRACTORS = "revisitop1m", 1_001_001


@dataclass(frozen=True, eq=False)  # comparing arrays gives no single boolean
class GroundTruth:
    """The ground truth of a revisited benchmark. Images in none of the lists of a query are its negatives.

    Attributes:
        images: The names of the gallery images, without `.jpg`.
        queries: The names of the query images.
        boxes: The bounding box of each query: left, top, right, bottom, in pixels.
        easy: The easy positives of each query: int64 positions in `images`.
        hard: The hard positives of each query.
        junk: The images that are ignored for each query.

    Example:
        >>> query = {"bbx": [0, 0, 9, 9], "easy": [0], "hard": [], "junk": [1]}
        >>> ground_truth = GroundTruth.from_dict({"imlist": ["a", "b"], "qimlist": ["c"], "gnd": [query]})
        >>> ground_truth.easy, ground_truth.boxes
        ([array([0])], [(0.0, 0.0, 9.0, 9.0)])
    """

    images: list[str]
    queries: list[str]
    boxes: list[Box]
    easy: list[Integers]
    hard: list[Integers]
    junk: list[Integers]

    @classmethod
    def load(cls, path: str | Path) -> GroundTruth:
        """Read the published pickle, without executing it, or JSON of the same structure.

        Raises:
            InputError: The file cannot be read, its name does not end in .pkl or .json, or a key is invalid.
        """
        path = Path(path)
        if path.suffix not in (".pkl", ".json"):
            raise InputError(f"{path}: a ground truth is read from a file ending in .pkl or .json")
        content = read_plain_pickle(path) if path.suffix == ".pkl" else read_json(path)
        with prefixed_errors(path):
            return cls.from_dict(content)

    @classmethod
    def from_dict(cls, content: Any) -> GroundTruth:
        """Convert the published structure: `imlist`, `qimlist`, and `gnd` with `bbx`, `easy`, `hard`, `junk` per query.

        Raises:
            InputError: A key is missing or its value is invalid.
        """
        images, queries = (_names(_value(content, key, "the ground truth"), key) for key in ("imlist", "qimlist"))
        entries = _value(content, "gnd", "the ground truth")
        if not isinstance(entries, list) or len(entries) != len(queries):
            raise InputError(f"gnd has no entry for each of the {len(queries)} queries of qimlist")
        keys = [f"gnd[{number}]" for number in range(len(entries))]
        boxes = [_box(_value(entry, "bbx", key), key) for entry, key in zip(entries, keys, strict=True)]
        easy, hard, junk = (
            [
                _positions(_value(entry, name, key), f"{key}: {name}", len(images))
                for entry, key in zip(entries, keys, strict=True)
            ]
            for name in LISTS
        )
        for key, *lists in zip(keys, easy, hard, junk, strict=True):
            _check_disjoint(lists, key)
        return cls(images, queries, boxes, easy, hard, junk)

    def to_dict(self) -> dict[str, Any]:
        """The published structure, for JSON."""
        lists = (getattr(self, name) for name in LISTS)
        entries = [
            {"bbx": list(box), **{name: rows.tolist() for name, rows in zip(LISTS, positions, strict=True)}}
            for box, *positions in zip(self.boxes, *lists, strict=True)
        ]
        return {"imlist": self.images, "qimlist": self.queries, "gnd": entries}


def roxford(root: str | Path | None = None) -> Table:
    """ROxford: 4,993 images of Oxford, and 70 queries.

    The gallery comes first (`is_gallery`), then the queries (`is_query`), cropped to their bounding boxes as the
    protocol requires. There are no labels, since the positives depend on the query: evaluate with
    :func:`~vicinal.evaluation.revisited.evaluate_revisited` and :func:`revisited_ground_truth`.

    Args:
        root: The folder of benchmarks; by default the environment variable VICINAL_DATA, else ~/.cache/vicinal. It
            holds the published folder `roxford5k`. The cropped queries are written to that folder once, or to the
            default folder if it is not writable.

    Raises:
        InputError: A file is missing or invalid.
    """
    return _table("roxford", root)


def rparis(root: str | Path | None = None) -> Table:
    """RParis: 6,322 images of Paris, and 70 queries, as :func:`roxford`; its folder is `rparis6k`."""
    return _table("rparis", root)


def roxford_1m(root: str | Path | None = None) -> Table:
    """:func:`roxford` with a million distractors (R1M), in the gallery and positives of no query.

    They come last in the table; the ground truth is that of :func:`roxford`.

    Args:
        root: The folder of benchmarks; it also holds the published folder `revisitop1m` with the list
            `revisitop1m.txt` and the images in `jpg`.

    Raises:
        InputError: A file is missing or invalid, or distractors are absent.
    """
    return _with_distractors(roxford(root), root)


def rparis_1m(root: str | Path | None = None) -> Table:
    """:func:`rparis` with a million distractors, as :func:`roxford_1m`."""
    return _with_distractors(rparis(root), root)


def revisited_ground_truth(name: str, root: str | Path | None = None) -> GroundTruth:
    """The ground truth of `roxford` or `rparis`.

    Args:
        name: The name of the benchmark.
        root: The folder of benchmarks, as in :func:`roxford`.

    Raises:
        InputError: The name is unknown, or the file is missing or invalid.
    """
    if name not in FOLDERS:
        raise InputError(f"{name}: no revisited benchmark; there are {' and '.join(FOLDERS)}")
    folder = cache_folder(root) / FOLDERS[name]
    files = [folder / f"gnd_{FOLDERS[name]}{suffix}" for suffix in (".json", ".pkl")]
    existing = [path for path in files if path.is_file()]
    if not existing:
        raise InputError(
            f"{folder}: no {' or '.join(path.name for path in files)}; download it and the images (to jpg/) from "
            "http://cmp.felk.cvut.cz/revisitop, or give the folder above as root"
        )
    return GroundTruth.load(existing[0])


def _table(name: str, root: str | Path | None) -> Table:
    ground_truth, folder = revisited_ground_truth(name, root), FOLDERS[name]
    images = cache_folder(root) / folder / "jpg"
    digest = hashlib.sha256(json.dumps([ground_truth.queries, ground_truth.boxes]).encode()).hexdigest()[:8]
    queries = writable_root(cache_folder(root), folder) / folder / f"queries-{digest}"
    crops = [f"{number:03d}-{Path(query).name}.png" for number, query in enumerate(ground_truth.queries)]
    prepare_folder(queries, crops[-1], partial(_write_crops, ground_truth, images, crops))
    frame = pd.DataFrame(
        {"path": [*(str(images / f"{image}.jpg") for image in ground_truth.images), *(str(queries / c) for c in crops)]}
    )
    is_query = np.arange(len(frame)) >= len(ground_truth.images)
    return Table(frame.assign(is_query=is_query, is_gallery=~is_query))


def _with_distractors(table: Table, root: str | Path | None) -> Table:
    """Add the images of the published list, which has the name of a file per line."""
    name, hint = f"{DISTRACTORS}.txt", "download it and the images (to jpg/) from http://cmp.felk.cvut.cz/revisitop"
    folder, _ = find_folder(root, (DISTRACTORS,), (name,), hint)
    rows = read_list(folder / name, (1,))
    if len(rows) != NUM_DISTRACTORS:
        raise InputError(f"{folder / name}: names {len(rows):,} images, but {NUM_DISTRACTORS:,} are published")
    paths = [str(folder / "jpg" / image) for _, (image,) in rows]
    check_images(paths, folder)
    distractors = pd.DataFrame({"path": paths, "is_query": False, "is_gallery": True})
    return Table(pd.concat([table.frame, distractors], ignore_index=True))


def _write_crops(ground_truth: GroundTruth, images: Path, crops: Sequence[str], folder: Path) -> None:
    for query, box, name in zip(ground_truth.queries, ground_truth.boxes, crops, strict=True):
        image = read_image(images / f"{query}.jpg")
        image.crop(_clip_box(box, image.size, query)).save(folder / name)


def _clip_box(box: Box, size: tuple[int, int], query: str) -> tuple[int, int, int, int]:
    """The part of a box inside the image, in whole pixels."""
    left, top, right, bottom = (max(0, min(round(edge), size[axis % 2])) for axis, edge in enumerate(box))
    if left >= right or top >= bottom:
        raise InputError(f"query {query!r}: bbx {list(box)} lies outside its image of {size[0]} x {size[1]}")
    return left, top, right, bottom


def _value(content: Any, key: str, where: str) -> Any:
    if not isinstance(content, Mapping) or key not in content:
        raise InputError(f"{where} has no {key!r}")
    return content[key]


def _names(value: Any, key: str) -> list[str]:
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise InputError(f"{key} is not a list of images' names")
    return value


def _box(value: Any, where: str) -> Box:
    numbers = _numbers(value, f"{where}: bbx")
    if len(numbers) != 4 or not np.isfinite(numbers).all() or not (numbers[:2] < numbers[2:]).all():
        raise InputError(f"{where}: bbx is {numbers.tolist()}; it must be left, top, right, bottom in pixels")
    left, top, right, bottom = numbers.tolist()
    return left, top, right, bottom


def _positions(value: Any, where: str, images: int) -> Integers:
    numbers = _numbers(value, where)
    wrong = numbers[~((numbers >= 0) & (numbers < images) & (numbers == np.rint(numbers)))]
    if len(wrong):
        raise InputError(f"{where} names image {wrong[0]:g}; imlist has {images}, counted from 0")
    return numbers.astype(np.int64)


def _check_disjoint(lists: Sequence[Integers], where: str) -> None:
    images, counts = np.unique(np.concatenate(lists), return_counts=True)
    if (counts > 1).any():
        raise InputError(f"{where} names image {images[counts > 1][0]} twice; list it once, as easy, hard or junk")


def _numbers(value: Any, where: str) -> Doubles:
    # Nested lists are refused, since a list that contains itself many times would expand beyond any memory.
    if isinstance(value, np.ndarray) or (isinstance(value, list) and all(map(is_number, value))):
        array = np.asarray(value).ravel()
        if not array.size or array.dtype.kind in "iuf":
            return array.astype(np.float64)
    raise InputError(f"{where} is not a list of numbers")
