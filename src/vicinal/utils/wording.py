"""Numbers and lists in sentences."""

from __future__ import annotations

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
