"""Paths as a page shows them: a page is passed on, and must not reveal where its author keeps files."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path, PurePath


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
