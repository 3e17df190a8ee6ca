"""One of the sets that a page compares."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from vicinal.data.table import Table
from vicinal.evaluation.protocol import Evaluation
from vicinal.report.page.metrics import Intervals
from vicinal.retrieval.scores import Array


class EvaluatedSet(NamedTuple):
    """What is compared.

    Attributes:
        vectors: float [rows, dim].
        table: one row a vector, with labels.
        evaluation: of both.
        run: the folder of the run they come from, if they do.
        intervals: metric -> its confidence interval, from 0 to 1.
    """

    vectors: Array
    table: Table
    evaluation: Evaluation
    run: str | Path | None = None
    intervals: Intervals | None = None
