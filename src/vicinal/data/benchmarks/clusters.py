"""Google Landmarks v1 and retrieval-SfM-120k: training sets of landmarks, as pickles of image ids and their clusters.

The pickles are those of "CNN Image Retrieval in PyTorch" (https://github.com/filipradenovic/cnnimageretrieval-pytorch).
They hold `train` and `val`, each with `cids` (the ids of the images), `cluster` (the landmark of each) and `qidxs`,
`pidxs` (pairs of queries and positives, which are not read). Nothing in them is executed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vicinal.data.benchmarks.cache import check_complete, find_folder
from vicinal.data.benchmarks.lists import read_plain_pickle
from vicinal.data.table import Table
from vicinal.utils.errors import InputError

SPLITS = ("train", "val")
ID = re.compile(r"\w[\w.-]{5,199}", re.ASCII)  # also the name of a file, whose last six characters name folders
LANDMARKS = ("gl18.pkl", "db_gl18.pkl", "google-landmarks-2018.pkl", "google-landmark-recognition.pkl")
LANDMARK_IMAGES = ("images/train", "train", "jpg")
SFM = "retrieval-SfM-120k.pkl"


def landmarks_v1(root: str | Path | None = None) -> Table:
    """Google Landmarks v1 (Noh et al., ICCV 2017; `gl18`), the training set of RS@k for ROxford and RParis.

    The labels are the clusters of the pickle. A landmark that is in `train` and in `val` keeps its label, and a warning
    says so. RS@k (Table 1) counts 1,060,709 images of 12,894 landmarks, as does the paper that presents the dataset;
    pickles hold the images that could still be downloaded, so that their numbers differ and are not checked.

    Args:
        root: The folder of benchmarks; by default the environment variable VICINAL_DATA, else ~/.cache/vicinal. It
            holds the folder `landmarks_v1` or `gl18`, or is that folder, with the pickle (`gl18.pkl`, `db_gl18.pkl`,
            `google-landmarks-2018.pkl` or `google-landmark-recognition.pkl`) and the images `images/train/<id>.jpg`,
            `train/<id>.jpg` or `jpg/<id>.jpg`.

    Raises:
        InputError: The pickle is missing or is not of this structure, an id occurs twice, or images are absent.
    """
    hint = "its original host is gone; put a copy of the pickle and of the images there"
    folder, pickle = find_folder(root, ("landmarks_v1", "gl18"), LANDMARKS, hint)
    images = [folder / name for name in LANDMARK_IMAGES if (folder / name).is_dir()]
    if not images:
        raise InputError(f"{folder}: has {pickle}, but no folder of images: {', '.join(LANDMARK_IMAGES)}")
    frame = read_clusters(folder / pickle)
    frame["path"] = frame["path"] + ".jpg"
    return check_complete("landmarks_v1", Table(frame, images[0]), folder)


def sfm_120k(root: str | Path | None = None) -> Table:
    """retrieval-SfM-120k (Radenovic et al., "Fine-tuning CNN Image Retrieval with No Human Annotation", TPAMI 2019).

    91,642 images for training, 6,403 for validation. The labels are `<split>/<cluster>`: the 3D models of the two
    splits are disjoint.

    Args:
        root: The folder of benchmarks; by default the environment variable VICINAL_DATA, else ~/.cache/vicinal. It
            holds the folder `sfm_120k` or `retrieval-SfM-120k`, or is that folder, with the pickle
            `retrieval-SfM-120k.pkl` and the folder `ims`.

    Raises:
        InputError: The pickle is missing or is not of this structure, an id occurs twice, or the copy is partial.
    """
    home = "http://cmp.felk.cvut.cz/cnnimageretrieval/data/train"
    names = ("sfm_120k", "retrieval-SfM-120k", "train/retrieval-SfM-120k")
    folder, pickle = find_folder(root, names, (SFM,), f"download it and ims.tar.gz from {home} and unpack them there")
    frame = read_clusters(folder / pickle)
    frame["path"] = [f"{name[-2:]}/{name[-4:-2]}/{name[-6:-4]}/{name}" for name in frame["path"]]
    frame["label"] = frame["split"] + "/" + frame["label"].astype(str)
    return check_complete("sfm_120k", Table(frame, folder / "ims"), folder)


def read_clusters(path: Path) -> pd.DataFrame:
    """Read the ids of images as `path`, their clusters as `label`, and the `split`, from a pickle."""
    content = read_plain_pickle(path)
    if not isinstance(content, dict) or not all(isinstance(content.get(split), dict) for split in SPLITS):
        raise InputError(f"{path}: no dicts 'train' and 'val'; it must be a pickle of image ids and clusters")
    frames = [pd.DataFrame(_columns(content[split], f"{path}: {split}")).assign(split=split) for split in SPLITS]
    frame = pd.concat(frames, ignore_index=True)
    if len({values["label"].dtype for values in frames}) > 1:
        raise InputError(f"{path}: the clusters of train and val are of two types; all must be integers or text")
    repeated = frame["path"][frame["path"].duplicated()]
    if len(repeated):
        raise InputError(f"{path}: the id {repeated.iloc[0]} appears twice; every image has one")
    return frame


def _columns(part: dict[str, Any], where: str) -> dict[str, Any]:
    ids, clusters = part.get("cids"), part.get("cluster")
    clusters = clusters.tolist() if isinstance(clusters, np.ndarray) else clusters
    if not isinstance(ids, list) or not ids or not isinstance(clusters, list) or len(ids) != len(clusters):
        raise InputError(f"{where}: 'cids' and 'cluster' are not two lists of the same length")
    for name in ids:
        if not isinstance(name, str) or not ID.fullmatch(name):
            raise InputError(f"{where}: {str(name)[:80]!r} in 'cids' is not the id of an image")
    if len({type(cluster) for cluster in clusters}) > 1 or type(clusters[0]) not in (int, str):
        raise InputError(f"{where}: 'cluster' must hold integers or text, of one type")
    return {"path": ids, "label": clusters}
