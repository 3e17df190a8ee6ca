"""Numbers with their nouns, lists and tables, as plain text."""

from __future__ import annotations

import re
from collections.abc import Sequence


def shorten(text: str, max_length: int) -> str:
    """The text; of one that is too long the middle is left out, and a little more is kept of the end.

    Words are kept whole if a part of the text is left on both sides.

    Example:
        >>> shorten("kitchen/cups/espresso", 18), shorten("Garant-Ecological-Medium-Fat-Milk", 24)
        ('kitchen/…/espresso', 'Garant-…-Fat-Milk')
        >>> shorten("kindergartenspielzeug", 9)
        'kin…lzeug'
    """
    if len(text) <= max_length:
        return text
    start, end = text[: max_length // 2 - 1], text[max_length // 2 - max_length :]
    whole_start = re.match(r".*[\W_]", start)
    whole_end = re.search(r"[\W_].*", end)
    return f"{whole_start[0] if whole_start else start}…{whole_end[0] if whole_end else end}"


MAX_LISTED = 20


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """A number with its noun.

    Example:
        >>> counted(1, "query", "queries"), counted(1200, "image")
        ('1 query', '1,200 images')
    """
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def listed(lines: Sequence[str]) -> list[str]:
    """The first twenty lines, indented, and how many more there are.

    Example:
        >>> listed(["a.jpg", "b.jpg"])
        ['  a.jpg', '  b.jpg']
    """
    more = len(lines) - MAX_LISTED
    return [f"  {line}" for line in lines[:MAX_LISTED]] + ([f"  and {more:,} more"] if more > 0 else [])


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
