"""Labels that fit below an image."""

from __future__ import annotations


def shorten(text: str, max_length: int) -> str:
    """The text; of one that is too long the middle is left out, and a little more is kept of the end.

    Example:
        >>> shorten("kitchen/cups/espresso", 18), shorten("cup", 18)
        ('kitchen/…/espresso', 'cup')
    """
    if len(text) <= max_length:
        return text
    start = max_length // 2 - 1
    return f"{text[:start]}…{text[start + 1 - max_length :]}"
