"""Tables of text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], num_left: int = 1) -> str:
    """Lay out rows of cells in columns, two spaces apart.

    Args:
        rows: The cells; all rows have as many.
        num_left: The number of columns that are aligned on the left; those after them are on the right.

    Example:
        >>> print(aligned([["", "images"], ["train", "4"], ["all", "12"]]))
               images
        train       4
        all        12
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        [cell.ljust(width) if column < num_left else cell.rjust(width)
         for column, (cell, width) in enumerate(zip(row, widths, strict=True))]
        for row in rows
    )  # fmt: skip
    return "\n".join("  ".join(line).rstrip() for line in lines)
