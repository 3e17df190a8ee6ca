"""The line below a page's title, and the names of files and sets on it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path, PurePath

from vicinal.data.table import Table
from vicinal.utils.console import counted


def header_line(*parts: str | None) -> str:
    """The parts that are known, in a line.

    Example:
        >>> header_line("split test", None, "3 files left out")
        'split test · 3 files left out'
    """
    return " · ".join(part for part in parts if part)


def splits_text(table: Table) -> str | None:
    """The splits of the images; None if the table has none.

    Example:
        >>> import pandas as pd
        >>> splits_text(Table(pd.DataFrame({"label": [1, 2], "split": ["train", "test"]})))
        'splits train, test'
    """
    if not table.has("split"):
        return None
    names = table.splits
    return f"{'split' if len(names) == 1 else 'splits'} {', '.join(names)}"


def model_text(backbone: str | None, dim: int) -> str:
    """The backbone, if it is known, and the dimension of its embeddings.

    Example:
        >>> model_text("resnet50", 512)
        'resnet50, 512 dimensions'
    """
    return ", ".join([*([backbone] if backbone else []), f"{dim:,} dimensions"])


def left_out_text(num_files: int) -> str | None:
    """How many files were left out, because they cannot be read or are no images; None if there are none."""
    return f"{counted(num_files, 'file')} left out" if num_files else None


def without_home(text: str) -> str:
    """Replace the home folder by `~`, wherever a path in the text begins with it.

    Example:
        >>> without_home(f"source: {Path.home()}/birds")
        'source: ~/birds'
    """
    home = str(Path.home())
    if len(home) < 2:  # the root folder
        return text
    return re.sub(rf"(?<![\w./~-]){re.escape(home)}(?![\w-]|\.\w)", "~", text)


def relative_paths(paths: Sequence[str | None]) -> list[str | None]:
    """Make paths relative to the folder that all of them are in; None stays None.

    Example:
        >>> relative_paths(["/data/birds/a/1.jpg", None, "/data/birds/b/1.jpg"])
        ['a/1.jpg', None, 'b/1.jpg']
    """
    short = [path and without_home(path) for path in paths]
    try:
        common = os.path.commonpath([os.path.dirname(path) for path in short if path])
    except ValueError:  # no paths, or some relative and some absolute
        return short
    return [path and str(PurePath(path).relative_to(common)) for path in short]


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Names of things that may be paths, without the folder that all are in; they stay different from each other.

    Example:
        >>> short_names(["/runs/birds/old", "/runs/birds/new"])
        {'/runs/birds/old': 'old', '/runs/birds/new': 'new'}
    """
    short = [str(path) for path in relative_paths(names)]
    if len(set(short)) < len(names):
        short = [without_home(name) for name in names]
    return dict(zip(names, short, strict=True))
