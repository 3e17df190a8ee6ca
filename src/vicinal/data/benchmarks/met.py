"""The Met: photographs of exhibits by visitors, to be found among those of the museum's catalog."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from vicinal.data.benchmarks.cache import check_complete, find_folder
from vicinal.data.benchmarks.lists import check_distinct, read_json
from vicinal.data.table import Table
from vicinal.utils.arguments import is_integer
from vicinal.utils.errors import InputError

QUERIES = {"val": "valset.json", "test": "testset.json"}
NO_MATCH = -1


def met(root: str | Path | None = None) -> Table:
    """The Met dataset (Ypsilantis et al., NeurIPS 2021): instance-level recognition of works of art.

    The labels are the exhibits. The 397,121 images of the catalog, of 224,408 exhibits, are for training; they are
    repeated in the split `test`, as gallery, with the queries. The column `query_set` says of each query whether it is
    published for validation (`val`), by which the classifier is tuned, or for testing (`test`). Queries that show none
    of the exhibits, such as other works of art, have the label -1. The classes of training and test are the same, as
    published, and a warning says so. Evaluate with :func:`~vicinal.evaluation.evaluate_met`.

    Args:
        root: The folder of benchmarks; by default the environment variable VICINAL_DATA, else ~/.cache/vicinal. It
            holds the folder `met`, or is that folder, with the published folders `ground_truth` and `images`.

    Raises:
        InputError: A file is missing, is not as published, or the copy is partial.
    """
    return _table("met", "MET_database.json", root)


def met_mini(root: str | Path | None = None) -> Table:
    """:func:`met` with the published small part of the catalog, `mini_MET_database.json`."""
    return _table("met_mini", "mini_MET_database.json", root)


def _table(name: str, database: str, root: str | Path | None) -> Table:
    markers = (f"ground_truth/{database}", database)
    hint = "download ground_truth and images from http://cmp.felk.cvut.cz/met and unpack them there"
    folder, found = find_folder(root, ("met", "MET"), markers, hint)
    lists = (folder / found).parent
    catalog = _read(folder / found, "id", is_optional=False).assign(query_set="")
    frames = [
        catalog.assign(split="train", is_query=False, is_gallery=False),
        catalog.assign(split="test", is_query=False, is_gallery=True),
        *(
            _read(lists / file, "MET_id", is_optional=True).assign(
                query_set=part, split="test", is_query=True, is_gallery=False
            )
            for part, file in QUERIES.items()
        ),
    ]
    return check_complete(name, Table(pd.concat(frames, ignore_index=True), folder / "images"), folder)


def _read(path: Path, key: str, is_optional: bool) -> pd.DataFrame:
    """Read the paths and labels of a list of images; if `is_optional`, an image without the key shows no exhibit."""
    content = read_json(path)
    if not isinstance(content, list) or not content:
        raise InputError(f"{path}: is not a list of images")
    entries = [_entry(entry, key, is_optional, f"{path}, entry {number}") for number, entry in enumerate(content)]
    check_distinct(path, [(number, [image]) for number, (image, _) in enumerate(entries)], "entry")
    return pd.DataFrame(entries, columns=["path", "label"])


def _entry(entry: Any, key: str, is_optional: bool, where: str) -> tuple[str, int]:
    if not isinstance(entry, dict) or not isinstance(entry.get("path"), str) or not entry["path"]:
        raise InputError(f"{where}: has no path; an entry is like {{'path': 'MET/1/0.jpg', '{key}': 1}}")
    label = entry.get(key, NO_MATCH if is_optional else None)
    if isinstance(label, str) and label.isascii() and label.isdecimal() and len(label) <= 18:
        label = int(label)
    if not is_integer(label):
        raise InputError(f"{where}: {key} is {label!r}; it must be the number of an exhibit")
    return entry["path"], label
