"""The fingerprint of a split: whether two people use the same images, labels and splits."""

from __future__ import annotations

import hashlib
import json
import os

from vicinal.data.table import Table

NUM_DIGITS = 16
SIDES = ("is_query", "is_gallery")


def split_fingerprint(table: Table) -> str:
    """Identify the images, labels and splits of a table, wherever its folder is.

    The fingerprint does not depend on the order of the rows, nor on the folder that holds all images: paths count from
    there. It depends on the name of every image, its label, its split and whether it is a query or in the gallery.

    Returns:
        16 hexadecimal digits, of a SHA-256.

    Raises:
        InputError: The table has no paths.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"path": ["a/1.png", "b/2.png"], "label": [1, 2], "split": ["train", "test"]})
        >>> split_fingerprint(Table(frame, "/data")) == split_fingerprint(Table(frame[::-1], "/home/me"))
        True
        >>> split_fingerprint(Table(frame, "/data")) == split_fingerprint(Table(frame.assign(label=[2, 1]), "/data"))
        False
    """
    names = _relative(table.paths)
    columns = [table.frame[name].tolist() for name in ("label", "split", *SIDES) if table.has(name)]
    rows = sorted([name, *map(str, values)] for name, *values in zip(names, *columns, strict=True))
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:NUM_DIGITS]


def _relative(paths: list[str]) -> list[str]:
    """The paths from the folder that holds all of them, with slashes."""
    folders = {os.path.dirname(path) for path in paths}
    start = len(os.path.commonpath(folders)) if folders else 0
    return [path[start:].replace(os.sep, "/").lstrip("/") for path in paths]
