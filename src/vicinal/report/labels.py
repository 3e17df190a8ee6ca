"""Labels that fit below an image."""

from __future__ import annotations

import re


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
