"""The columns of paths and labels: named once, and remembered by the run or the index that was made with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vicinal.data.columns import COLUMN_FLAGS, named_columns
from vicinal.utils.files import check_regular_file
from vicinal.utils.run_folder import RunFolder


def data_settings_of_run(run: RunFolder) -> Mapping[str, Any]:
    """The group `data` of a run's recipe; empty if the recipe cannot be read."""
    from yaml import YAMLError

    from vicinal.utils.plain_yaml import load_yaml

    check_regular_file(run.recipe)
    try:
        recipe = load_yaml(run.recipe.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YAMLError):
        return {}
    data = recipe.get("data") if isinstance(recipe, dict) else None
    return data if isinstance(data, dict) else {}


def columns_of_run(model: str | None) -> dict[str, str]:
    """The names of columns that a run was trained with; empty for a model that is no run."""
    if model is None or not RunFolder(Path(model)).recipe.is_file():
        return {}
    return named_columns(data_settings_of_run(RunFolder(Path(model))))


def choose_column(source: str, flag: str, given: str | None, remembered: Mapping[str, str]) -> str | None:
    """The column of a table that holds paths or labels.

    Args:
        source: The source of the table.
        flag: `path_column` or `label_column`.
        given: The name that was given, if any.
        remembered: The names that were given before, by flag.

    Returns:
        The name that was given; else that which was given before, if this table has a column of that name and none
        called `path` or `label`; else `path`, and None for labels, which are optional.
    """
    default = None if flag == "label_column" else COLUMN_FLAGS[flag]
    known = remembered.get(flag)
    if given is not None or known is None or not _is_table(source):
        return default if given is None else given
    from vicinal.data.table_files import column_names

    names = column_names(Path(source))
    return known if known in names and COLUMN_FLAGS[flag] not in names else default


def _is_table(source: str) -> bool:
    return Path(source).suffix.lower() in (".csv", ".parquet") and Path(source).is_file()
