"""What a page compares."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from vicinal.data.table import Table
from vicinal.evaluation.result import Evaluation
from vicinal.retrieval.scores import Array


class EvaluatedEmbeddings(NamedTuple):
    """Embeddings with their table and evaluation.

    Attributes:
        vectors: float [rows, dim].
        table: one row per embedding, with labels.
        evaluation: of both.
        run: the folder of the run that they come from, if there is one.
        backbone: the name of the model's backbone, if it is known.
        num_left_out: the number of files that were left out.
    """

    vectors: Array
    table: Table
    evaluation: Evaluation
    run: str | Path | None = None
    backbone: str | None = None
    num_left_out: int = 0
