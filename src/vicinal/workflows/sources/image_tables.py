"""The tables of images that a command is given: a run, a file, a folder, a table file or a benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from vicinal.data.loading import list_table, load_run_table, load_table
from vicinal.data.moved import move_root
from vicinal.data.table import Table
from vicinal.utils.run_folder import RunFolder
from vicinal.workflows.models import check_not_refiner_run
from vicinal.workflows.sources.source_kind import source_kind

if TYPE_CHECKING:
    from vicinal.data.containers.listing import ListedImages


def load_image_table(
    source: str, root: str | None = None, path_column: str | None = "path", label_column: str | None = None
) -> Table:
    """Return the table of a run, an image file, a folder, a table file or a benchmark.

    Args:
        source: what to read.
        root: as for :func:`~vicinal.data.load_table`; for a run, the folder that its images were moved to.
        path_column: the column of image paths, for a table file.
        label_column: the column of labels; None if labels are optional.

    Raises:
        InputError: it cannot be read.
    """
    check_not_refiner_run(source)
    kind = source_kind(source)
    if kind == "run":
        table = load_run_table(RunFolder(Path(source)).table)
        return table if root is None else Table(table.frame.assign(path=move_root(table.paths, root)))
    if kind == "image":
        return Table(pd.DataFrame({"path": [source]}))
    return load_table(source, root, path_column, label_column)


def list_image_table(
    source: str, root: str | None = None, path_column: str | None = "path", label_column: str | None = None
) -> ListedImages:
    """Return the table of :func:`load_image_table`, of which images of a container are not written yet."""
    if source_kind(source) in ("run", "image"):
        from vicinal.data.containers.listing import ListedImages

        return ListedImages(load_image_table(source, root, path_column, label_column))
    return list_table(source, root, path_column, label_column)
