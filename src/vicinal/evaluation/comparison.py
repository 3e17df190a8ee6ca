"""What re-ranking or refinement brings: the metrics of the plain rankings beside those of the new ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from vicinal.data.table import Table
from vicinal.evaluation.csv_text import csv_text
from vicinal.evaluation.protocol import evaluate
from vicinal.evaluation.result import Evaluation
from vicinal.retrieval.rerank import Reranking
from vicinal.retrieval.scores import Array


@dataclass(frozen=True)
class Comparison:
    """The evaluation of the same embeddings before and after re-ranking or refinement.

    Attributes:
        plain: without it.
        reranked: with it.
        method: how it was re-ranked, or refined.
    """

    plain: Evaluation
    reranked: Evaluation
    method: Reranking

    def to_dict(self) -> dict[str, Any]:
        """The plain evaluation, and under `reranked` (or `refined`) the method and its metrics, ready for JSON."""
        after = {"method": repr(self.method), "metrics": dict(self.reranked.metrics)}
        return {**self.plain.to_dict(), self.method.outcome.replace("-", ""): after}

    def to_csv(self) -> str:
        """A line a metric, before and after; values are from 0 to 1."""
        after = self.reranked.metrics
        rows = ([name, value, after[name]] for name, value in self.plain.metrics.items())
        return csv_text(["metric", "plain", self.method.outcome], rows)

    def __str__(self) -> str:
        first, *lines = str(self.plain).splitlines()
        after = self.reranked.metrics.values()
        rows = [f"{line}   {100 * value:6.2f} %" for line, value in zip(lines, after, strict=True)]
        word = self.method.outcome
        return "\n".join([first, f"{word}: {self.method!r}", f"{'plain':>{len(lines[0])}}   {word:>8}", *rows])


def compare(
    embeddings: Array,
    table: Table,
    rerank: Reranking,
    recall_at: Sequence[int] | None = None,
    chunk: int | None = None,
    *,
    metrics: Sequence[str] = (),
    hierarchy: bool = False,
) -> Comparison:
    """Evaluate twice: without and with re-ranking or refinement.

    Args:
        embeddings: float [rows, dim].
        table: one row an embedding, with labels; all as in :func:`~vicinal.evaluation.evaluate`.
        rerank: the method, such as `ContextualReranking()`.
        recall_at: the k of each recall@k.
        chunk: queries a block.
        metrics: more of them, by name.
        hierarchy: whether to score each coarse level too.

    Raises:
        InputError: as `evaluate`.

    Example:
        >>> import numpy as np, pandas as pd
        >>> from vicinal.retrieval import ContextualReranking
        >>> angles = np.array([0.0, 0.5, -0.4, 0.2, -0.3, 0.65])
        >>> vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        >>> table = Table(pd.DataFrame({"label": ["a", "b", "a", "b", "a", "b"]}))
        >>> print(compare(vectors, table, ContextualReranking(k=4), recall_at=[1]))
        leave-one-out: 6 queries, 6 gallery images
        re-ranked: ContextualReranking(k=4, beta=0.1, epsilon=0.0)
                         plain   re-ranked
        recall@1       66.67 %   100.00 %
        mAP@R          75.00 %    83.33 %
        R-precision    83.33 %    83.33 %
        mAP            86.11 %    94.44 %
    """
    score = partial(evaluate, embeddings, table, recall_at, chunk, metrics=metrics, hierarchy=hierarchy)
    return Comparison(score(), score(rerank=rerank), rerank)
