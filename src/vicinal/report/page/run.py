"""What a page shows of a run: its recipe, its logs, and all its data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from vicinal.data.table import Table
from vicinal.report.page.paths import without_home
from vicinal.utils.errors import InputError
from vicinal.utils.run_folder import RunFolder
from vicinal.utils.run_log import empty_log, read_log


@dataclass(frozen=True, eq=False)
class Run:
    """The contents of a run's folder, as far as they are there.

    Attributes:
        recipe: the text of the recipe, in which the home folder is written `~`.
        log: one row per logged training step.
        metrics: one row per evaluation.
        table: all images, of every split.
    """

    recipe: str | None = None
    log: pd.DataFrame = field(default_factory=empty_log)
    metrics: pd.DataFrame = field(default_factory=empty_log)
    table: Table | None = None


def read_run(path: str | Path) -> Run:
    """Read a run's folder; files may be missing.

    Raises:
        InputError: no such folder, or a file in it that cannot be read.
    """
    folder = RunFolder(Path(path))
    if not folder.path.is_dir():
        raise InputError(f"{folder.path}: no such run; give the folder of a run")
    return Run(
        _read_recipe(folder.recipe) if folder.recipe.is_file() else None,
        read_log(folder.log),
        read_log(folder.metrics),
        Table.from_parquet(folder.table, path_column=None, label_column=None) if folder.table.is_file() else None,
    )


def settings(recipe: str | None) -> dict[str, str]:
    """The settings of a recipe by their names with dots, such as `loss.margin`.

    Example:
        >>> settings("{loss: {margin: 0.1}, epochs: 3}")
        {'loss.margin': '0.1', 'epochs': '3'}
    """
    try:
        read = yaml.safe_load(recipe or "")
    except yaml.YAMLError:
        return {}
    return _flat(read) if isinstance(read, Mapping) else {}


def _flat(values: Mapping[Any, Any], before: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in values.items():
        name = f"{before}{key}"
        flat |= _flat(value, f"{name}.") if isinstance(value, Mapping) and value else {name: _shown(value)}
    return flat


def _shown(value: object) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _read_recipe(path: Path) -> str:
    try:
        return without_home(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8; save the recipe as UTF-8 text") from None
