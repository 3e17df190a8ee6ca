"""ROxford and RParis: photographs of landmarks, and for every query what is easy, hard or junk.

As published (Radenovic et al., "Revisiting Oxford and Paris", CVPR 2018; http://cmp.felk.cvut.cz/revisitop): a folder
`roxford5k` or `rparis6k` with the images in `jpg/` and the ground truth `gnd_roxford5k.pkl` or `gnd_rparis6k.pkl`. In
its place `gnd_roxford5k.json`, of the same structure, will do, and comes first.
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
import numpy.typing as npt
import pandas as pd

from vicinal.data.benchmarks.cache import cache_folder, prepare_folder, writable_root
from vicinal.data.benchmarks.plain_pickle import read_plain_pickle
from vicinal.data.decoding import read_image
from vicinal.data.table import Table
from vicinal.errors import InputError

LISTS = ("easy", "hard", "junk")
FOLDERS = {"roxford": "roxford5k", "rparis": "rparis6k"}

NUMBER = (int, float, np.number)

Integers = npt.NDArray[np.int64]
Box = tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)  # arrays have no one truth to compare by
class GroundTruth:
    """What the queries of a revisited benchmark are to find. Of an image in no list nothing is to be found.

    Attributes:
        images: names of the gallery's images, without `.jpg`.
        queries: names of the queries' images.
        boxes: what of each query's image is meant: left, top, right, bottom, in pixels.
        easy: of each query, the images that are easy to find: int64 positions in `images`.
        hard: those that are hard to find.
        junk: those that count neither for nor against.

    Example:
        >>> query = {"bbx": [0, 0, 9, 9], "easy": [0], "hard": [], "junk": [1]}
        >>> truth = GroundTruth.from_dict({"imlist": ["a", "b"], "qimlist": ["c"], "gnd": [query]})
        >>> truth.easy, truth.boxes
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
        """Read a ground truth as published, a pickle (which is not run), or as JSON of the same structure.

        Raises:
            InputError: no such file, another ending than .pkl or .json, or other content, with its key.
        """
        path = Path(path)
        if path.suffix not in (".pkl", ".json"):
            raise InputError(f"{path}: a ground truth is read from a file ending in .pkl or .json")
        content = read_plain_pickle(path) if path.suffix == ".pkl" else _json(path)
        try:
            return cls.from_dict(content)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None

    @classmethod
    def from_dict(cls, content: Any) -> GroundTruth:
        """Take the published structure: `imlist`, `qimlist`, and `gnd` with `bbx`, `easy`, `hard`, `junk` a query.

        Raises:
            InputError: a key is missing or its value impossible.
        """
        images, queries = (_names(_value(content, key, "the ground truth"), key) for key in ("imlist", "qimlist"))
        entries = _value(content, "gnd", "the ground truth")
        if not isinstance(entries, list) or len(entries) != len(queries):
            raise InputError(f"gnd has no entry for each of the {len(queries)} queries of qimlist")
        places = [f"gnd[{number}]" for number in range(len(entries))]
        boxes = [_box(_value(entry, "bbx", place), place) for entry, place in zip(entries, places, strict=True)]
        easy, hard, junk = (
            [
                _positions(_value(entry, key, place), f"{place}: {key}", len(images))
                for entry, place in zip(entries, places, strict=True)
            ]
            for key in LISTS
        )
        for place, *lists in zip(places, easy, hard, junk, strict=True):
            _check_disjoint(lists, place)
        return cls(images, queries, boxes, easy, hard, junk)

    def to_dict(self) -> dict[str, Any]:
        """The published structure, ready for JSON."""
        lists = (getattr(self, key) for key in LISTS)
        entries = [
            {"bbx": list(box), **{key: rows.tolist() for key, rows in zip(LISTS, three, strict=True)}}
            for box, *three in zip(self.boxes, *lists, strict=True)
        ]
        return {"imlist": self.images, "qimlist": self.queries, "gnd": entries}


def roxford(root: str | Path | None = None) -> Table:
    """ROxford: 4,993 photographs of Oxford, and 70 queries.

    The gallery comes first (`is_gallery`), then the queries (`is_query`), cropped to their boxes as the protocol asks
    for; there are no labels, for what is sought depends on the query: evaluate by
    :func:`~vicinal.evaluation.revisited.evaluate_revisited`, with :func:`revisited_truth`.

    Args:
        root: folder that keeps benchmarks; by default VICINAL_DATA of the environment, else ~/.cache/vicinal. The
            published folder is `roxford5k` in it. Cropped queries are written to that folder once, or to the default
            one where it must not be written.

    Raises:
        InputError: a file is missing or not what it should be.
    """
    return _table("roxford", root)


def rparis(root: str | Path | None = None) -> Table:
    """RParis: 6,322 photographs of Paris, and 70 queries; all as in :func:`roxford`, in the folder `rparis6k`."""
    return _table("rparis", root)


def revisited_truth(name: str, root: str | Path | None = None) -> GroundTruth:
    """What is to be found in `roxford` or `rparis`.

    Args:
        name: which of the two.
        root: as in :func:`roxford`.

    Raises:
        InputError: another name, or the file is missing or not what it should be.
    """
    if name not in FOLDERS:
        raise InputError(f"{name}: no revisited benchmark; there are {' and '.join(FOLDERS)}")
    folder = cache_folder(root) / FOLDERS[name]
    files = [folder / f"gnd_{FOLDERS[name]}{suffix}" for suffix in (".json", ".pkl")]
    there = [path for path in files if path.is_file()]
    if not there:
        raise InputError(
            f"{folder}: no {' or '.join(path.name for path in files)}; download it and the images (to jpg/) from "
            "http://cmp.felk.cvut.cz/revisitop, or give the folder above as root"
        )
    return GroundTruth.load(there[0])


def _table(name: str, root: str | Path | None) -> Table:
    truth, place = revisited_truth(name, root), FOLDERS[name]
    pictures = cache_folder(root) / place / "jpg"
    digest = hashlib.sha256(json.dumps([truth.queries, truth.boxes]).encode()).hexdigest()[:8]
    cropped = writable_root(cache_folder(root), place) / place / f"queries-{digest}"
    crops = [f"{number:03d}-{Path(query).name}.png" for number, query in enumerate(truth.queries)]
    prepare_folder(cropped, crops[-1], partial(_crop, truth, pictures, crops))
    frame = pd.DataFrame(
        {"path": [*(str(pictures / f"{image}.jpg") for image in truth.images), *(str(cropped / c) for c in crops)]}
    )
    is_query = np.arange(len(frame)) >= len(truth.images)
    return Table(frame.assign(is_query=is_query, is_gallery=~is_query))


def _crop(truth: GroundTruth, pictures: Path, crops: Sequence[str], folder: Path) -> None:
    for query, box, name in zip(truth.queries, truth.boxes, crops, strict=True):
        image = read_image(pictures / f"{query}.jpg")
        image.crop(_within(box, image.size, query)).save(folder / name)


def _within(box: Box, size: tuple[int, int], query: str) -> tuple[int, int, int, int]:
    """The part of a box that lies within the image, in whole pixels."""
    left, top, right, bottom = (max(0, min(round(edge), size[axis % 2])) for axis, edge in enumerate(box))
    if left >= right or top >= bottom:
        raise InputError(f"query {query!r}: bbx {list(box)} has no pixel of its image of {size[0]} x {size[1]}")
    return left, top, right, bottom


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not JSON ({error})") from None


def _value(content: Any, key: str, where: str) -> Any:
    if not isinstance(content, Mapping) or key not in content:
        raise InputError(f"{where} has no {key!r}")
    return content[key]


def _names(value: Any, key: str) -> list[str]:
    if not isinstance(value, list) or not value or not all(isinstance(name, str) for name in value):
        raise InputError(f"{key} is no list of images' names")
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
        raise InputError(f"{where} names image {images[counts > 1][0]} twice; it can be easy, hard or junk, and once")


def _numbers(value: Any, where: str) -> npt.NDArray[np.float64]:
    # Lists hold numbers only: one within another could hold itself so often that no memory is enough.
    if isinstance(value, np.ndarray) or (isinstance(value, list) and all(map(_is_number, value))):
        array = np.asarray(value).ravel()
        if not array.size or array.dtype.kind in "iuf":
            return array.astype(np.float64)
    raise InputError(f"{where} is no list of numbers")


def _is_number(value: Any) -> bool:
    return isinstance(value, NUMBER) and not isinstance(value, bool)
