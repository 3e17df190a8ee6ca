"""Google Landmarks v2: a training set of landmarks, and a retrieval benchmark whose positives are listed by query.

The published files (https://github.com/cvdfoundation/google-landmark) lie in one folder: the lists `*.csv`, and the
images in `train/`, `index/` and `test/`, each in folders by the first three characters of its id.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from vicinal.data.benchmarks.cache import check_complete, find_folder
from vicinal.data.table import Table
from vicinal.data.table_files import read_csv
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

CLEAN, FULL = "train_clean.csv", "train.csv"
INDEX, INDEX_LABELS, SOLUTION = "index.csv", "index_image_to_landmark.csv", "retrieval_solution_v2.1.csv"
ID = re.compile("[0-9a-f]{16}")
USAGES = ("Public", "Private", "Ignored")


def landmarks_v2(root: str | Path | None = None) -> Table:
    """Google Landmarks v2 (Weyand et al., CVPR 2020), with its clean training set and the retrieval benchmark.

    1,580,470 images of 81,313 landmarks are for training. The split `test` has the 761,757 images of the index as
    gallery and 1,129 queries, each in the `query_set` `public` or `private`; the other test images have no positive and
    are left out. The positives are listed by query: the column `positives` has their ids, separated by spaces, and
    `image_id` the id of every image, so that :func:`~vicinal.evaluation.evaluate_listed_positives` needs no other file.

    The labels are `train/<landmark>` and `index/<landmark>`, since the index has its own numbering. A query has the
    label of its first positive; the published metric does not use it.

    Args:
        root: The folder of benchmarks; by default the environment variable VICINAL_DATA, else ~/.cache/vicinal. It
            holds the folder `landmarks_v2` or `google-landmark`, or is that folder. Without the list of the training
            images, or without `index.csv`, the table has the other part only, and that is logged.

    Raises:
        InputError: A file is missing, a line is not as published, an id occurs twice, or the copy is partial.
    """
    return _table("landmarks_v2", CLEAN, root)


def landmarks_v2_full(root: str | Path | None = None) -> Table:
    """:func:`landmarks_v2` with all 4,132,914 images of 203,094 landmarks for training, many of them noisy."""
    return _table("landmarks_v2_full", FULL, root)


def _table(name: str, training_list: str, root: str | Path | None) -> Table:
    hint = "download the lists and images as https://github.com/cvdfoundation/google-landmark says"
    folder, _ = find_folder(root, ("landmarks_v2", "google-landmark"), (training_list, INDEX), hint)
    frames = []
    for file, read in ((training_list, _training), (INDEX, _retrieval)):
        if (folder / file).is_file():
            frames.append(read(folder, file))
        else:
            part = "queries and gallery" if file == INDEX else "training images"
            log(f"{folder}: no {file}, so {name} has no {part}")
    frame = pd.concat(frames, ignore_index=True)
    _check_ids(frame, folder)
    folders = frame.pop("folder") + "/"
    ids = frame["image_id"]
    frame["path"] = folders + ids.str[0] + "/" + ids.str[1] + "/" + ids.str[2] + "/" + ids + ".jpg"
    table = Table(frame, folder)
    for part, split in ((name, "train"), ("landmarks_v2_retrieval", "test")):
        if split in table.splits:
            check_complete(part, table.subset(split), folder)
    return table


def _training(folder: Path, file: str) -> pd.DataFrame:
    if file == FULL:
        rows = _read(folder / file, ("id", "landmark_id"))
        ids, landmarks = rows["id"].tolist(), rows["landmark_id"].tolist()
    else:
        rows = _read(folder / file, ("landmark_id", "images"))
        lists = [images.split() for images in rows["images"]]
        ids = [image for images in lists for image in images]
        landmarks = [name for name, images in zip(rows["landmark_id"], lists, strict=True) for _ in images]
    return _frame("train", "train", ids, "train", landmarks)


def _retrieval(folder: Path, file: str) -> pd.DataFrame:
    landmarks = _read(folder / INDEX_LABELS, ("id", "landmark_id")).set_index("id")["landmark_id"].to_dict()
    gallery = _read(folder / file, ("id",))["id"].tolist()
    _check_known(gallery, landmarks, folder / INDEX_LABELS)
    queries = _read(folder / SOLUTION, ("id", "images", "Usage"))
    unknown = ~queries["Usage"].isin(USAGES)
    if unknown.any():
        line = queries.index[unknown][0]
        raise InputError(f"{folder / SOLUTION}, line {line}: Usage is not {', '.join(USAGES)}")
    queries = queries[queries["Usage"] != "Ignored"]
    indexed = set(gallery)
    for line, positives in queries["images"].items():
        if not positives.split():
            raise InputError(f"{folder / SOLUTION}, line {line}: no images; a query that is not ignored needs some")
        _check_known(positives.split(), indexed, folder / file)
    firsts = [landmarks[positives.split()[0]] for positives in queries["images"]]
    return pd.concat(
        [
            _frame("test", "index", gallery, "index", [landmarks[image] for image in gallery]).assign(is_gallery=True),
            _frame("test", "test", queries["id"].tolist(), "index", firsts).assign(
                is_query=True, positives=queries["images"].tolist(), query_set=queries["Usage"].str.lower().tolist()
            ),
        ]
    )


def _frame(split: str, folder: str, ids: Sequence[str], naming: str, landmarks: Sequence[str]) -> pd.DataFrame:
    columns = {"image_id": list(ids), "label": [f"{naming}/{landmark}" for landmark in landmarks]}
    no_query = {"is_query": False, "is_gallery": False, "positives": "", "query_set": ""}
    return pd.DataFrame({**columns, **no_query, "split": split, "folder": folder})


def _read(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    frame = read_csv(path)
    missing = [column for column in columns if column not in frame]
    if missing:
        raise InputError(f"{path}: no column {missing[0]!r}; the columns are {', '.join(frame.columns)}")
    return frame[list(columns)]


def _check_known(ids: Sequence[str], known: set[str] | dict[str, str], where: Path) -> None:
    unknown = next((image for image in ids if image not in known), None)
    if unknown is not None:
        raise InputError(f"{where}: no line for {unknown[:80]}; the copy is partial or another version")


def _check_ids(frame: pd.DataFrame, folder: Path) -> None:
    ids = frame["image_id"]
    invalid = ids[~ids.str.fullmatch(ID)]
    if len(invalid):
        raise InputError(f"{folder}: a list has the id {invalid.iloc[0][:80]!r}; ids are 16 digits from 0 to f")
    repeated = frame[frame.duplicated(["folder", "image_id"])]
    if len(repeated):
        split, name = repeated.iloc[0][["folder", "image_id"]]
        raise InputError(f"{folder}: the lists name image {name} of {split}/ twice")
