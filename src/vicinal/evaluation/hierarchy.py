"""Label levels: the labels themselves and the coarse labels above them, such as species, families and orders.

A retrieved image of another class may still have the same coarse label. At a coarse level, all images with the coarse
label of the query are positives, in the same ranking. What is excluded from the ranking (the query itself and its
same-group positives) is the same at every level.
"""

from __future__ import annotations

from vicinal.data.columns import is_coarse_column
from vicinal.data.table import Table
from vicinal.evaluation.relevance import Relevance
from vicinal.utils.arrays import Integers
from vicinal.utils.errors import InputError


def coarse_columns(table: Table) -> list[str]:
    """The columns of coarse labels, from the finest to the coarsest: `coarse`, `coarse_2`, ...

    Example:
        >>> import pandas as pd
        >>> coarse_columns(Table(pd.DataFrame({"label": [0], "coarse_10": [0], "coarse_2": [0], "coarse": [0]})))
        ['coarse', 'coarse_2', 'coarse_10']
    """
    columns = [str(column) for column in table.frame.columns if is_coarse_column(str(column))]
    return sorted(columns, key=lambda column: int(column.partition("_")[2] or 1))


def coarse_relevances(
    table: Table, fine: Relevance, query_rows: Integers, gallery_rows: Integers
) -> dict[str, Relevance]:
    """The relevance at each coarse level, in the rankings of the fine level.

    Args:
        table: with at least one column of coarse labels.
        fine: the relevance of the labels themselves.
        query_rows: int64 [q], the rows of the table that are queries.
        gallery_rows: int64 [g], the rows of the table that are gallery images.

    Returns:
        Column -> relevance, from the finest to the coarsest.

    Raises:
        InputError: the table has no column of coarse labels.

    Example:
        >>> import numpy as np
        >>> import pandas as pd
        >>> table = Table(pd.DataFrame({"label": [0, 0, 1], "coarse": ["bird", "bird", "bird"]}))
        >>> rows = np.arange(3)
        >>> fine = Relevance(table.labels, table.labels, exclude_self=rows)
        >>> coarse_relevances(table, fine, rows, rows)["coarse"].positives(0)
        array([1, 2])
    """
    columns = coarse_columns(table)
    if not columns:
        available = ", ".join(table.frame.columns)
        raise InputError(f"the table has no column 'coarse' of coarse labels; its columns are {available}")
    codes = {column: table.codes(column) for column in columns}
    return {
        column: Relevance(codes[column][query_rows], codes[column][gallery_rows], exclusions=fine) for column in columns
    }
