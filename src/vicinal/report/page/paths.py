"""Paths as a page shows them: a page is passed on, and is not to tell where its author keeps files."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path, PurePath


def without_home(text: str) -> str:
    """The text with the home folder as `~`, wherever a path in it begins with it.

    Example:
        >>> without_home(f"source: {Path.home()}/birds")
        'source: ~/birds'
    """
    home = str(Path.home())
    if len(home) < 2:  # the root
        return text
    return re.sub(rf"(?<![\w./~-]){re.escape(home)}(?![\w-]|\.\w)", "~", text)


def shown_paths(paths: Sequence[str | None]) -> list[str | None]:
    """Paths relative to the folder that all are in; None stays None.

    Example:
        >>> shown_paths(["/data/birds/a/1.jpg", None, "/data/birds/b/1.jpg"])
        ['a/1.jpg', None, 'b/1.jpg']
    """
    short = [path and without_home(path) for path in paths]
    try:
        common = os.path.commonpath([os.path.dirname(path) for path in short if path])
    except ValueError:  # no paths, or some relative and some absolute
        return short
    return [path and str(PurePath(path).relative_to(common)) for path in short]
