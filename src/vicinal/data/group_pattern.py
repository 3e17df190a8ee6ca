"""Groups of images by a pattern of their file names, such as the series or the day of each photo."""

from __future__ import annotations

import re

import numpy as np

from vicinal.data.table import Table
from vicinal.utils.console import counted, log
from vicinal.utils.errors import InputError

NO_GROUP = -1


def with_groups(table: Table, pattern: str) -> Table:
    r"""The table with a column `group`: images with the same text at the pattern's place in their paths are one group.

    Args:
        table: Images, with paths.
        pattern: A regular expression; its first pair of parentheses is the place, or all of it if it has none. Images
            in whose path it is not found have no group.

    Raises:
        InputError: There are no paths, there are groups already, or the pattern is none or is found in no path.

    Example:
        >>> import pandas as pd
        >>> table = Table(pd.DataFrame({"path": ["/cup/day1_1.jpg", "/cup/day1_2.jpg", "/cup/day2_1.jpg", "/x.jpg"]}))
        >>> with_groups(table, r"(day\d+)_").frame["group"].tolist()
        [0, 0, 1, -1]
    """
    if table.has("group"):
        raise InputError(f"group_pattern = {pattern}: the table has a column group already; leave one of them out")
    try:
        found = [re.search(pattern, path) for path in table.paths]
    except re.error as error:
        raise InputError(f"group_pattern = {pattern} is no regular expression: {error}") from None
    texts = [None if match is None else match[1] if match.re.groups else match[0] for match in found]
    names = {text: number for number, text in enumerate(dict.fromkeys(filter(None, texts)))}
    if not names:
        raise InputError(f"group_pattern = {pattern} is found in no path, such as {table.paths[0]}")
    numbers = np.array([NO_GROUP if not text else names[text] for text in texts])
    without = int((numbers == NO_GROUP).sum())
    log(
        f"{counted(len(names), 'group')} by group_pattern"
        + (f"; {counted(without, 'image')} in none" if without else "")
    )
    return Table(table.frame.assign(group=numbers))
