"""The dataset that the settings of a recipe describe."""

from __future__ import annotations

import warnings
from dataclasses import replace

from vicinal.data.checks import check_classes
from vicinal.data.groups import with_groups
from vicinal.data.loading import load_table
from vicinal.data.noise.add_noise import add_noise
from vicinal.data.settings import DataSettings
from vicinal.data.splits.division import hold_out_images
from vicinal.data.splits.train_lists import use_train_list
from vicinal.data.table import Table
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

DEFAULT_FRACTIONS = {"train": 0.6, "val": 0.2, "test": 0.2}
MIN_CLASSES = 4  # that these fractions divide into three splits, two of them for train


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

    Raises:
        InputError: as :meth:`Table.split_classes <vicinal.data.Table.split_classes>` and
            :func:`~vicinal.data.use_train_list`.

    Example:
        >>> from vicinal.data import load_table
        >>> settings = DataSettings(fractions={"train": 0.8, "val": 0.2}, order="in_order")
        >>> table = divide(load_table("digits"), settings)
        >>> table.splits, table.subset("val").classes, table.subset("test").classes
        (['train', 'val', 'test'], [4], [5, 6, 7, 8, 9])
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
    log(f"training on all {len(table.classes)} classes: too few to leave some to val and test; see data.val_images")
    return {"train": 1.0}


def _check_labeled(table: Table, source: str) -> None:
    """Check that classes can be assigned to splits at all, with clearer errors than those of the assignment."""
    if not table.has("label"):
        raise InputError(
            f"{source} has no labels; training needs a folder for each class, all at the same depth, or a column with "
            "labels"
        )
    check_classes(table)
