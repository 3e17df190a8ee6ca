"""The dataset that the settings of a recipe describe."""

from __future__ import annotations

from vicinal.data.checks import check_trainable
from vicinal.data.loading import load_table
from vicinal.data.noise import add_noise
from vicinal.data.settings import DataSettings
from vicinal.data.table import Table
from vicinal.utils.errors import InputError

DEFAULT_FRACTIONS = {"train": 0.6, "val": 0.2, "test": 0.2}


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
        ...     table = load_dataset(DataSettings("digits", root=folder, classes={"train": [1, 2], "test": [3]}))
        >>> table.splits
        ['train', 'test']
    """
    if settings.source is None:
        raise InputError("data.source is missing: give a folder of class folders, a .csv or .parquet, or a benchmark")
    table = load_table(
        settings.source, root=settings.root, path_column=settings.path_column, label_column=settings.label_column
    )
    fractions, classes, column = settings.fractions, settings.classes, settings.split_column
    if (fractions, classes, column) == (None, None, None) and not table.has("split"):
        _check_labeled(table, settings.source)
        fractions = DEFAULT_FRACTIONS
    if fractions or classes or column:
        own = table
        table = table.split_classes(fractions=fractions, classes=classes, column=column, seed=seed)
        if fractions:
            _check_test_classes(own, table, settings.source)
    if "train" not in table.splits:
        raise InputError(f"{settings.source} has no rows in the split train; its splits: {', '.join(table.splits)}")
    return add_noise(table, settings.noise, seed)


def _check_test_classes(own: Table, table: Table, source: str) -> None:
    """Check that no class of the source's own test split is trained on or validated on."""
    if not own.has("split") or "test" not in own.splits:
        return
    moved = set(own.subset("test").classes) - set(table.subset("test").classes if "test" in table.splits else ())
    moved &= set(table.classes)
    if moved:
        raise InputError(
            f"data.fractions would train or validate on {len(moved)} of the {len(own.subset('test').classes)} classes "
            f"that {source} has for testing; leave data.fractions out to keep its splits, or give a table without a "
            "column split"
        )


def _check_labeled(table: Table, source: str) -> None:
    """Check that classes can be assigned to splits at all, with clearer errors than those of the assignment."""
    if not table.has("label"):
        raise InputError(f"{source} has no labels; training needs a folder for each class, or a column with labels")
    check_trainable(table)
