"""Cars98N: photographs of cars from the web with noisy labels for training, and the test images of Cars196."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from vicinal.data.benchmarks import cars
from vicinal.data.benchmarks.cache import find_folder
from vicinal.data.benchmarks.completeness import check_counts
from vicinal.data.benchmarks.lists import check_distinct, read_list
from vicinal.data.table import Table
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

LISTS = ("CARSN_train.csv", "datalist/CARSN_train.csv")
IMAGES = "img_v3"
PATH = re.compile(rf"(?:.*/)?{IMAGES}/([0-9]{{1,3}})/([^/]+)")


def cars98n(root: str | Path | None = None) -> Table:
    """Cars98N (Liu et al., "Noise-resistant Deep Metric Learning with Ranking-based Instance Selection", CVPR 2021).

    9,558 images of 98 classes from the web are for training, with the noise that comes with them; the test split is
    that of :func:`cars`. The labels are the numbers of Cars196, 1 to 98 for training: the folder plus one. The list
    itself numbers the classes in the order of their folders as text, 0, 1, 10, 11, ..., so that its 3 is Cars196's 11.

    Many of the published links are dead, so that no complete copy can be expected: images of the list whose files are
    absent are left out, and their number is logged. Say it beside scores, which a smaller training set lowers.

    Args:
        root: The folder of benchmarks; by default the environment variable VICINAL_DATA, else ~/.cache/vicinal. Its
            folder `cars98n` or `cars_noise` holds the published list `CARSN_train.csv`, directly or in `datalist/`, and
            the folder `img_v3`; Cars196 is there too, as for :func:`cars`.

    Raises:
        InputError: A file is missing, the list is not as published, or none of its images is there.
    """
    home = "https://github.com/alibaba-edu/Ranking-based-Instance-Selection"
    hint = f"get the list from {home} and download the images to {IMAGES}/ as it says"
    folder, found = find_folder(root, ("cars98n", "cars_noise"), LISTS, hint)
    listed = _read(folder / found)
    check_counts("cars98n", Table(listed), folder / found)
    training = listed[_exist(listed["path"].tolist(), folder)]
    if not len(training):
        raise InputError(f"{folder}: none of the {len(listed):,} images of {found} is in {IMAGES}/; {hint}")
    if len(training) < len(listed):
        log(f"{folder}: left out {len(listed) - len(training):,} of {len(listed):,} images whose files are absent")
    training = training.assign(path=[str(folder / path) for path in training["path"]])
    return Table(pd.concat([training, cars(root).subset("test").frame[["path", "label", "split"]]], ignore_index=True))


def _read(path: Path) -> pd.DataFrame:
    rows = read_list(path, (2,), separator=",")
    check_distinct(path, rows)
    paths, labels = [], []
    numbers: dict[str, str] = {}
    for line, (name, number) in rows:
        match = PATH.fullmatch(name)
        if match is None:
            raise InputError(f"{path}, line {line}: {name[:80]!r}; a line is .../{IMAGES}/<number>/<image>,<label>")
        class_folder, file = match.groups()
        first = numbers.setdefault(class_folder, number)
        if first != number:
            raise InputError(f"{path}, line {line}: the label {number} in the folder {class_folder}, whose is {first}")
        paths.append(f"{IMAGES}/{class_folder}/{file}")
        labels.append(int(class_folder) + 1)
    return pd.DataFrame({"path": paths, "label": labels, "split": "train"})


def _exist(paths: Sequence[str], folder: Path) -> list[bool]:
    existing = {str(path.relative_to(folder)) for path in (folder / IMAGES).glob("*/*")}
    return [path in existing for path in paths]
