"""Parts of docstrings, for help and messages."""

from __future__ import annotations

import inspect
import re


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
