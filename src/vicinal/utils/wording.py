"""Numbers with their nouns, lists and tables, and parts of docstrings, as plain text."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence

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


def first_paragraph(kind: type) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join(inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].split())


def argument_texts(kind: type) -> dict[str, str]:
    """What the docstrings of a class and of its base classes say about each argument, each on one line.

    Example:
        >>> class Circle:
        ...     '''A circle.
        ...
        ...     Args:
        ...         radius: half the diameter,
        ...             above 0.
        ...     '''
        >>> argument_texts(Circle)
        {'radius': 'half the diameter, above 0.'}
    """
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        _, _, after = f"\n{inspect.cleandoc(base.__doc__ or '')}\n".partition("\nArgs:\n")
        section = re.split(r"^(?=\S)", after, maxsplit=1, flags=re.MULTILINE)[0]
        for name, text in re.findall(r"^    (\w+): (.*\n(?:     .*\n|\n)*)", section, re.MULTILINE):
            texts[name] = " ".join(text.split())
    return texts
