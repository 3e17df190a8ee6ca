"""The line below a page's title: what was evaluated, by which model, and what was left out."""

from __future__ import annotations

from vicinal.data.table import Table
from vicinal.utils.wording import counted


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
