"""The dataset that the settings of a recipe describe: its table, groups, list of training images, splits and noise."""

from __future__ import annotations

import warnings
from collections import defaultdict
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pandas as pd

from vicinal.data.benchmarks.lists import Row, class_number, read_list
from vicinal.data.checks import check_classes
from vicinal.data.groups import with_groups
from vicinal.data.loading import load_table
from vicinal.data.noise import add_noise
from vicinal.data.settings import DataSettings
from vicinal.data.splits import hold_out_images
from vicinal.data.table import Table
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

COPY = "_2"  # added to the name of the second of two images of one name, in the lists of Cars196
ENDING, CLEAN_ENDING = "_train.csv", "_cleaned_train.csv"

Key = tuple[str, str]
"""The folder and the name of an image."""
DEFAULT_FRACTIONS = {"train": 0.6, "val": 0.2, "test": 0.2}
MIN_CLASSES = 4  # that these fractions divide into three splits, two of them for train


def use_train_list(table: Table, path: str | Path) -> Table:
    r"""Replace the training split by the images of a list, with the labels that the list gives them.

    The lists are those of PRISM (Liu et al., "Noise-resistant Deep Metric Learning with Ranking-based Instance
    Selection", CVPR 2021; https://github.com/alibaba-edu/Ranking-based-Instance-Selection), such as
    `CUB_0.5noised_train.csv`, or others of the same form: lines `<path>,<label>`, with integers as labels. A path means
    the training image of the table with the same name in a folder of the same name, wherever the folder is. If folders
    differ, as in copies of Cars196 without a folder per class, the n-th of the listed folders in alphabetical order is
    the n-th class. Of two images of one name in a class, such as in `cars_train` and `cars_test`, the second is listed
    as `<name>_2`.

    The labels of the list are names of their own, `listed/<label>`, and the other splits stay as they are. If the list
    of the clean images is beside the list, such as `CUB_0.5noised_cleaned_train.csv`, the column `noisy_label` says
    which labels are noisy, and `label_clean` gives the label of the clean images of the same class; if there are none,
    as in a class that was dissolved into clusters, it is `class/<label in the table>`.

    Args:
        table: A table with a training split, such as `cub`, `cars` or `sop`.
        path: The list.

    Raises:
        InputError: The list cannot be read, names an image twice, or names images that are not in the training split.

    Example:
        >>> import tempfile
        >>> frame = pd.DataFrame({"path": ["a/1.jpg", "a/2.jpg", "b/1.jpg"], "label": ["a", "a", "b"]})
        >>> table = Table(frame.assign(split=["train", "train", "test"]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "list.csv").write_text("/data/images/a/1.jpg,7\n/data/images/a/2.jpg,8\n")
        ...     use_train_list(table, f"{folder}/list.csv").frame["label"].tolist()
        ['listed/7', 'listed/8', 'b']
    """
    path = Path(path)
    rows, training = _read(path), table.subset("train")
    positions = _positions(path, rows, training)
    listed = training.frame.iloc[positions].assign(label=[f"listed/{label}" for _, (_, label) in rows])
    others = table.frame[table.frame["split"] != "train"]
    others = others.assign(label=others["label"].astype(str))
    clean = path.with_name(path.name.removesuffix(ENDING) + CLEAN_ENDING)
    if path.name.endswith(ENDING) and not path.name.endswith(CLEAN_ENDING) and clean.is_file():
        is_clean = {image for _, (image, _) in _read(clean)}
        listed["noisy_label"] = [image not in is_clean for _, (image, _) in rows]
        listed["label_clean"] = _clean_labels(listed, training.frame["label"].iloc[positions])
        others = others.assign(noisy_label=False, label_clean=others["label"])
    log(f"{path}: {len(listed):,} training images in place of {len(training):,}")
    return Table(pd.concat([listed, others], ignore_index=True))


def _read(path: Path) -> list[Row]:
    rows = read_list(path, (2,), separator=",")
    return [(line, [image, str(class_number(label, f"{path}, line {line}"))]) for line, (image, label) in rows]


def _positions(path: Path, rows: list[Row], training: Table) -> list[int]:
    listed = [_key(image) for _, (image, _) in rows]
    index: dict[Key, list[int]] = defaultdict(list)
    for position, key in enumerate(_keys(training, sorted({folder for folder, _ in listed}))):
        index[key].append(position)
    found = [_find(index, *key) for key in listed]
    missing = [image for position, (_, (image, _)) in zip(found, rows, strict=True) if position is None]
    if missing:
        first = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise InputError(f"{path}: {len(missing):,} of {len(rows):,} images are not in the training split: {first}")
    positions = [position for position in found if position is not None]
    lines: dict[int, int] = {}
    for position, (line, (image, _)) in zip(positions, rows, strict=True):
        if lines.setdefault(position, line) != line:
            raise InputError(f"{path}, line {line}: {image} is the image of line {lines[position]} again")
    return positions


def _key(image: str) -> Key:
    path = PurePosixPath(image)
    return path.parent.name, path.name


def _keys(training: Table, folders: list[str]) -> list[Key]:
    """The folder and the name of each training image; the folder that the list has for its class, if folders differ."""
    keys = [_key(path) for path in training.paths]
    if len(folders) == len(training.classes) and not {folder for folder, _ in keys} & set(folders):
        return [(folders[label], name) for label, (_, name) in zip(training.labels, keys, strict=True)]
    return keys


def _find(index: dict[Key, list[int]], folder: str, name: str) -> int | None:
    if (folder, name) in index:
        return index[folder, name][0]
    stem, dot, ending = name.rpartition(".")
    copies = index.get((folder, stem.removesuffix(COPY) + dot + ending), []) if stem.endswith(COPY) else []
    return copies[1] if len(copies) > 1 else None


def _clean_labels(listed: pd.DataFrame, classes: pd.Series) -> list[str]:
    clean = ~listed["noisy_label"]
    of_class = dict(zip(classes[clean], listed["label"][clean], strict=True))
    return [of_class.get(label, f"class/{label}") for label in classes]


def load_dataset(settings: DataSettings, seed: int = 0) -> Table:
    """Read the table that the settings describe, assign its classes to splits, and add noise.

    Args:
        settings: The settings of the dataset.
        seed: The seed of the random choices of classes and noise.

    Raises:
        InputError: The source is missing, cannot be read, cannot be divided into splits, or has no training split.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     table = load_dataset(DataSettings("digits", root=folder, classes={"train": [1, 2], "val": [3]}))
        >>> table.splits
        ['train', 'val', 'test']
    """
    if settings.source is None:
        raise InputError("data.source is missing: give a folder of class folders, a .csv or .parquet, or a benchmark")
    table = load_table(
        settings.source, root=settings.root, path_column=settings.path_column, label_column=settings.label_column
    )
    table = with_groups(table, settings.group_pattern, settings.group_minutes)
    if not settings.divides and not table.has("split"):
        _check_labeled(table, settings.source)
        settings = replace(settings, fractions=_default_fractions(table, settings))
    table = divide(table, settings, seed)
    if "train" not in table.splits:
        raise InputError(f"{settings.source} has no rows in the split train; its splits: {', '.join(table.splits)}")
    return add_noise(table, settings.noise, seed)


def divide(table: Table, settings: DataSettings, seed: int = 0) -> Table:
    """Assign the classes of a table to splits as the settings say; without such settings, it is returned as it is.

    A list of training images replaces the training split first. Images of training classes are held out last.
    """
    if settings.train_list is not None:
        table = use_train_list(table, settings.train_list)
    if settings.divides:
        table = table.split_classes(
            settings.fractions, settings.classes, settings.split_column, seed, settings.order, settings.redivide
        )
    if not settings.val_images:
        return table
    with warnings.catch_warnings():  # of classes in two splits, which are intended and which the log says
        warnings.filterwarnings("ignore", message="class .* is in the splits train and val")
        return Table(hold_out_images(table.frame, settings.val_images, seed))


def _default_fractions(table: Table, settings: DataSettings) -> dict[str, float]:
    """The fractions of the classes of a table without splits; all are for training if images or none validate."""
    if settings.val_images:
        return {"train": 1.0}
    if len(table.classes) >= MIN_CLASSES:
        return DEFAULT_FRACTIONS
    log(f"training on all {len(table.classes)} classes: too few to hold some out for val and test; see data.val_images")
    return {"train": 1.0}


def _check_labeled(table: Table, source: str) -> None:
    """Check that classes can be assigned to splits at all, with clearer errors than those of the assignment."""
    if not table.has("label"):
        raise InputError(
            f"{source} has no labels; training needs a folder for each class, all at the same depth, or a column with "
            "labels"
        )
    check_classes(table)
