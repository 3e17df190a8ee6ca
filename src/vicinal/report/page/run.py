"""What a page says of a run: its recipe, how training went, and all its data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import yaml

from vicinal.data.table import Table
from vicinal.errors import InputError
from vicinal.report.page.paths import without_home

# The layout of a run's folder is training's, which stands above pictures and may not be imported here.
RECIPE, LOG, METRICS, TABLE = "recipe.yaml", "log.csv", "metrics.csv", "table.parquet"


class Run(NamedTuple):
    """What a run's folder says, as far as it is there.

    Attributes:
        recipe: the text of its recipe, its author's home folder as `~`.
        log: a line every few steps.
        metrics: a line an evaluation.
        table: all its images, of every split.
    """

    recipe: str | None = None
    log: pd.DataFrame | None = None
    metrics: pd.DataFrame | None = None
    table: Table | None = None


def read_run(folder: str | Path) -> Run:
    """Read a run's folder; files that are not there, or empty, are None.

    Raises:
        InputError: no such folder, or a file in it that cannot be read.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such run; give the folder of a run")
    recipe, table = folder / RECIPE, folder / TABLE
    return Run(
        _read_recipe(recipe) if recipe.is_file() else None,
        _read_log(folder / LOG),
        _read_log(folder / METRICS),
        Table.from_parquet(table, path_column=None, label_column=None) if table.is_file() else None,
    )


def settings(recipe: str | None) -> dict[str, str]:
    """The settings of a recipe, flat, with dots between the levels.

    Example:
        >>> settings("{loss: {margin: 0.1}, epochs: 3}")
        {'loss.margin': '0.1', 'epochs': '3'}
    """
    try:
        read = yaml.safe_load(recipe or "")
    except yaml.YAMLError:
        return {}
    return _flat(read) if isinstance(read, Mapping) else {}


def numbers(frame: pd.DataFrame, column: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """A column as float64; what is no number, as in a line that a killed process left, is NaN."""
    return pd.to_numeric(frame[column], errors="coerce").to_numpy(dtype=np.float64)


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


def _read_log(path: Path) -> pd.DataFrame | None:
    if not path.is_file() or not path.stat().st_size:
        return None
    try:
        frame = pd.read_csv(path, on_bad_lines="skip")
    except (ValueError, UnicodeError) as error:
        raise InputError(f"{path}: not a log of a run ({str(error).splitlines()[0]})") from None
    return frame if len(frame) and "step" in frame else None
