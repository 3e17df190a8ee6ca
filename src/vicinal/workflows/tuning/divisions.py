"""The tables of a study's runs. Those of a search have no test images, so that nothing can look at them."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

from vicinal.data import Table, check_trainable, class_folds, load_dataset
from vicinal.data.noise.add_noise import check_foreign, load_foreign
from vicinal.data.settings import DataSettings, NoiseSettings
from vicinal.utils.errors import InputError
from vicinal.workflows.tuning.study_recipe import DATA

if TYPE_CHECKING:
    from pathlib import Path

    from vicinal.training.recipes.recipe import Recipe

ALL, FINAL = "all", "final"
"""The names of the tables of a grid, and of the training on all training classes."""


def load_study_table(recipe: Recipe) -> Table:
    """The images of a recipe with their splits, without its noise, which each run adds to its own training images.

    Raises:
        InputError: they cannot be read or divided, or foreign images are among them: the runs of a search could not see
            that they are test images.
    """
    data = recipe.settings.data
    table = load_dataset(replace(data, noise=NoiseSettings()), recipe.settings.seed)
    if data.noise.foreign is not None:
        check_foreign(table, load_foreign(data.noise))
    return table


def search_tables(table: Table, held_out: str) -> dict[str, Table]:
    """Divide the classes that are not for testing into training and validation.

    Args:
        table: images with their splits.
        held_out: the classes that validate: `half`, the second half of all classes in order; `val`, those of the split
            val; or a number of folds, each of which validates once, while the others train.

    Returns:
        Name -> table with the splits train and val.

    Raises:
        InputError: it cannot be divided so.

    Example:
        >>> import pandas as pd
        >>> split = ["train", "train", "train", "train", "test"]
        >>> table = Table(pd.DataFrame({"label": ["a", "b", "c", "d", "e"], "split": split}))
        >>> for name, each in search_tables(table, "half").items():
        ...     print(name, each.subset("train").classes, each.subset("val").classes, each.splits)
        half ['a', 'b'] ['c', 'd'] ['train', 'val']
    """
    development = table.take((table.frame["split"] != "test").to_numpy(dtype=bool))
    if held_out == "val":
        if "val" not in table.splits:
            raise InputError("held_out = val: the data has no split val; take half, or a number of folds")
        return {"val": development}
    num_folds = 2 if held_out == "half" else int(held_out)
    try:
        folds = class_folds(development.classes, num_folds, order="in_order")
    except InputError as error:
        raise InputError(f"held_out = {held_out}: {error}") from None
    chosen = {"half": folds[1]} if held_out == "half" else {f"fold{at}": fold for at, fold in enumerate(folds)}
    return {name: _validating(development, fold) for name, fold in chosen.items()}


def _validating(table: Table, fold: list[Any]) -> Table:
    held_out = set(fold)
    rest = [name for name in table.classes if name not in held_out]
    return table.split_classes(classes={"train": rest, "val": fold})


def final_table(table: Table) -> Table:
    """All classes that are not for testing in the split train."""
    splits = table.frame["split"].where(table.frame["split"] == "test", "train")
    return Table(table.frame.assign(split=splits))


def check_table(recipe: Recipe, table: Table) -> None:
    """Check that a recipe can be trained on a table.

    Raises:
        InputError: too few classes or images for its batches, or to validate.
    """
    from vicinal.training.training_data import create_sampler, require_validatable

    training = table.subset("train")
    check_trainable(training)
    if "val" in table.splits:
        require_validatable(table.subset("val"), recipe.settings.validation.metric)
    create_sampler(recipe.settings, training)


def with_table(config: dict[str, Any], path: Path) -> dict[str, Any]:
    """The values of a recipe that takes its images and their splits from a table."""
    defaults = asdict(DataSettings())
    own = {field.name: defaults[field.name] for field in fields(DataSettings) if field.name in DATA}
    return {**config, "data": {**config["data"], **own, "source": str(path)}}
