"""Cars196 (Stanford Cars) in three layouts, and Cars98N: cars from the web with noisy labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from vicinal.data.benchmarks.cache import check_complete, check_counts, find_folder
from vicinal.data.benchmarks.lists import Row, box_columns, check_distinct, class_number, parse_box, read_list
from vicinal.data.table import Table
from vicinal.utils.console import log
from vicinal.utils.errors import InputError, one_line
from vicinal.utils.files import check_regular_file

NUM_CLASSES = 196
LAST_TRAINING_CLASS = 98
NAMES = ("cars", "cars196", "Cars196", "CARS196", "stanford_cars")
FIELDS = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class")
LAYOUTS_HINT = (
    "get car_ims with cars_annos.mat, or cars_train and cars_test with devkit and cars_test_annos_withlabels.mat, or "
    "car_data with names.csv, anno_train.csv and anno_test.csv, for example from Kaggle, and put them there"
)
NOISY_LISTS = ("CARSN_train.csv", "datalist/CARSN_train.csv")  # of Cars98N
NOISY_IMAGES = "img_v3"
NOISY_PATH = re.compile(rf"(?:.*/)?{NOISY_IMAGES}/([0-9]{{1,3}})/([^/]+)")


def read_annotations(path: Path, image_field: str) -> list[Row]:
    """Read the records of the struct array `annotations`: their positions, from 1, and the wanted fields as text."""
    from scipy.io import loadmat

    check_regular_file(path)
    try:
        records = loadmat(path, squeeze_me=True, variable_names=["annotations"]).get("annotations")
    except Exception as error:  # a broken file makes the reader raise errors of many kinds
        raise InputError(f"{path}: not a readable MATLAB file ({one_line(error)})") from None
    names = getattr(getattr(records, "dtype", None), "names", None) or ()
    fields = (image_field, *FIELDS)
    missing = [field for field in fields if field not in names]
    if missing:
        there = f"the fields of its annotations are {', '.join(names)}" if names else "no list of records annotations"
        raise InputError(f"{path}: has no {missing[0]}; {there}")
    columns = ([_text(value) for value in np.atleast_1d(records[field])] for field in fields)
    rows = [(number, list(row)) for number, row in enumerate(zip(*columns, strict=True), 1)]
    check_distinct(path, rows, "entry")
    return rows


def _text(value: object) -> str:
    number = value.item() if isinstance(value, (np.generic, np.ndarray)) and value.size == 1 else value
    return f"{number:.15g}" if isinstance(number, float) else str(number)


def cars(root: str | Path | None = None) -> Table:
    """Cars196 (Krause et al., 2013): 98 models of cars with 8,054 images for training, 98 with 8,131 for testing.

    The labels are the published numbers of the classes, 1 to 98 for training and 99 to 196 for testing. The published
    training and test images, a division of each class for classification, are taken together. The bounding boxes are in
    the columns `box_x_1`, `box_y_1`, `box_x_2`, `box_y_2`.

    The files are read in any of these published layouts; the labels are the same, while order and file names differ:

    - `car_ims/` and `cars_annos.mat`;
    - `cars_train/`, `cars_test/`, `devkit/` and `cars_test_annos_withlabels.mat`, there or in `devkit/`;
    - `car_data/`, `names.csv`, `anno_train.csv` and `anno_test.csv`.

    Args:
        root: The folder of benchmarks; by default the environment variable VICINAL_DATA, else ~/.cache/vicinal. It
            holds these files, or a folder `cars`, `cars196` or `stanford_cars` does.

    Raises:
        InputError: A file is missing, an annotation is not as published, or images are absent.
    """
    folder, marker = find_folder(root, NAMES, tuple(LAYOUTS), LAYOUTS_HINT)
    frame = LAYOUTS[marker](folder)
    splits = ["train" if label <= LAST_TRAINING_CLASS else "test" for label in frame["label"]]
    return check_complete("cars", Table(frame.assign(split=splits), folder), folder)


def _read_single(folder: Path) -> pd.DataFrame:
    """All images in one folder, with one file of annotations."""
    path = folder / "cars_annos.mat"
    return _frame(path, read_annotations(path, "relative_im_path"), "entry")


def _read_devkit(folder: Path) -> pd.DataFrame:
    """A folder of images for training and one for testing, each with a file of annotations."""
    name = "cars_test_annos_withlabels.mat"
    path = next((place / name for place in (folder, folder / "devkit") if (place / name).is_file()), None)
    if path is None:
        raise InputError(
            f"{folder}: no {name} here or in devkit/; it was published beside the devkit, whose own "
            "cars_test_annos.mat lacks the classes of the test images"
        )
    files = {"cars_train": folder / "devkit" / "cars_train_annos.mat", "cars_test": path}
    frames = [_frame(file, read_annotations(file, "fname"), "entry") for file in files.values()]
    return pd.concat([_inside(images, frame) for images, frame in zip(files, frames, strict=True)], ignore_index=True)


def _read_class_folders(folder: Path) -> pd.DataFrame:
    """A folder per class, for training and for testing, each with a list."""
    classes = [
        name.strip('"').replace("/", "-") for _, (name,) in read_list(folder / "names.csv", (1,), separator="\n")
    ]
    images = "car_data/car_data" if (folder / "car_data" / "car_data").is_dir() else "car_data"
    frames = []
    for part in ("train", "test"):
        path = folder / f"anno_{part}.csv"
        frame = _frame(path, read_list(path, (6,), separator=","), "line")
        if frame["label"].max() > len(classes):
            raise InputError(f"{path}: has the class {frame['label'].max()}, but names.csv has {len(classes)} names")
        frames.append(_inside([f"{images}/{part}/{classes[label - 1]}" for label in frame["label"]], frame))
    return pd.concat(frames, ignore_index=True)


def _inside(folders: str | Sequence[str], frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(path=pd.Series(folders, index=frame.index) + "/" + frame["path"])


def _frame(path: Path, rows: Sequence[Row], unit: str) -> pd.DataFrame:
    """The table of annotations: the name of an image, its box and its class. The unit is the word for a row."""
    where = [f"{path}, {unit} {number}" for number, _ in rows]
    labels = [class_number(fields[5], place) for place, (_, fields) in zip(where, rows, strict=True)]
    wrong = next((i for i, label in enumerate(labels) if not 1 <= label <= NUM_CLASSES), None)
    if wrong is not None:
        raise InputError(f"{where[wrong]}: has the class {labels[wrong]}; the classes are 1 to {NUM_CLASSES}")
    boxes = [parse_box(fields[1:5], place) for place, (_, fields) in zip(where, rows, strict=True)]
    return pd.DataFrame({"path": [fields[0] for _, fields in rows], "label": labels, **box_columns(boxes)})


LAYOUTS: dict[str, Callable[[Path], pd.DataFrame]] = {
    "cars_annos.mat": _read_single,
    "devkit/cars_train_annos.mat": _read_devkit,
    "anno_train.csv": _read_class_folders,
}
"""The file that each layout is known by, and its reader."""


def cars98n(root: str | Path | None = None) -> Table:
    """Cars98N (Liu et al., "Noise-resistant Deep Metric Learning with Ranking-based Instance Selection", CVPR 2021).

    9,558 images of 98 classes from the web are for training, with the noise that comes with them; the test split is
    that of :func:`cars`. The labels are the numbers of Cars196, 1 to 98 for training: the folder plus one. The list
    itself numbers the classes in the order of their folders as text, 0, 1, 10, 11, ..., so that its 3 is Cars196's 11.

    Many of the published links are dead, so that no complete copy can be expected: images of the list whose files are
    absent are left out, and their number is logged. Report it with the scores, which a smaller training set lowers.

    Args:
        root: The folder of benchmarks; by default the environment variable VICINAL_DATA, else ~/.cache/vicinal. Its
            folder `cars98n` or `cars_noise` holds the published list `CARSN_train.csv`, directly or in `datalist/`, and
            the folder `img_v3`; Cars196 is there too, as for :func:`cars`.

    Raises:
        InputError: A file is missing, the list is not as published, or none of its images exists.
    """
    home = "https://github.com/alibaba-edu/Ranking-based-Instance-Selection"
    hint = f"get the list from {home} and download the images to {NOISY_IMAGES}/ as it says"
    folder, found = find_folder(root, ("cars98n", "cars_noise"), NOISY_LISTS, hint)
    listed = _read(folder / found)
    check_counts("cars98n", Table(listed), folder / found)
    existing = {str(path.relative_to(folder)) for path in (folder / NOISY_IMAGES).glob("*/*")}
    training = listed[listed["path"].isin(existing)]
    if not len(training):
        raise InputError(f"{folder}: none of the {len(listed):,} images of {found} is in {NOISY_IMAGES}/; {hint}")
    if len(training) < len(listed):
        log(f"{folder}: left out {len(listed) - len(training):,} of {len(listed):,} images whose files are missing")
    training = training.assign(path=[str(folder / path) for path in training["path"]])
    return Table(pd.concat([training, cars(root).subset("test").frame[["path", "label", "split"]]], ignore_index=True))


def _read(path: Path) -> pd.DataFrame:
    paths, labels = [], []
    numbers: dict[str, str] = {}
    for line, (name, number) in read_list(path, (2,), separator=","):
        match = NOISY_PATH.fullmatch(name)
        if match is None:
            raise InputError(
                f"{path}, line {line}: {name[:80]!r}; a line is .../{NOISY_IMAGES}/<number>/<image>,<label>"
            )
        class_folder, file = match.groups()
        first = numbers.setdefault(class_folder, number)
        if first != number:
            raise InputError(
                f"{path}, line {line}: the label {number} in the folder {class_folder}, whose label is {first}"
            )
        paths.append(f"{NOISY_IMAGES}/{class_folder}/{file}")
        labels.append(int(class_folder) + 1)
    return pd.DataFrame({"path": paths, "label": labels, "split": "train"})
