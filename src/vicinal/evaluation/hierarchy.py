"""Levels of labels: the fine ones, and what they are part of, such as species, families and orders.

A retrieval that is wrong may still be nearly right: at a coarse level, images of the same coarse label are positives
too, in the same ranking. What is left out of it (the query itself, its same-group matches) stays left out.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vicinal.data.columns import is_coarse_column
from vicinal.data.table import Table
from vicinal.errors import InputError
from vicinal.evaluation.ranking import Relevance

Integers = npt.NDArray[np.int64]


def coarse_columns(table: Table) -> list[str]:
    """The columns of coarse labels, from the finest to the coarsest: `coarse`, `coarse_2`, ...

    Example:
        >>> import pandas as pd
        >>> coarse_columns(Table(pd.DataFrame({"label": [0], "coarse_10": [0], "coarse_2": [0], "coarse": [0]})))
        ['coarse', 'coarse_2', 'coarse_10']
    """
    columns = [str(column) for column in table.frame.columns if is_coarse_column(str(column))]
    return sorted(columns, key=lambda column: int(column.partition("_")[2] or 1))


def coarse_levels(table: Table, fine: Relevance, query_rows: Integers, gallery_rows: Integers) -> dict[str, Relevance]:
    """What is to be found at each coarse level, in the rankings of the fine one.

    Args:
        table: with at least one column of coarse labels.
        fine: of the labels themselves.
        query_rows: int64 [q], the queries' rows in the table.
        gallery_rows: int64 [g], the gallery's.

    Returns:
        Column -> relevance, from the finest to the coarsest.

    Raises:
        InputError: the table has no column of coarse labels.

    Example:
        >>> import pandas as pd
        >>> table = Table(pd.DataFrame({"label": [0, 0, 1], "coarse": ["bird", "bird", "bird"]}))
        >>> rows = np.arange(3)
        >>> fine = Relevance(table.labels, table.labels, exclude=rows)
        >>> coarse_levels(table, fine, rows, rows)["coarse"].positives(0)
        array([1, 2])
    """
    columns = coarse_columns(table)
    if not columns:
        have = ", ".join(table.frame.columns)
        raise InputError(f"the table has no column 'coarse' (labels of a coarser level); its columns are {have}")
    codes = {column: table.codes(column) for column in columns}
    return {
        column: Relevance(codes[column][query_rows], codes[column][gallery_rows], ranking=fine) for column in columns
    }
