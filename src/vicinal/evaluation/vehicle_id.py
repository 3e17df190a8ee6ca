"""VehicleID's protocol: one image of each class, drawn by chance, makes the gallery; repeated and averaged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from vicinal.arguments import is_whole
from vicinal.data.table import Table
from vicinal.errors import InputError
from vicinal.evaluation.protocol import evaluate
from vicinal.evaluation.result import Evaluation, headline
from vicinal.retrieval.scores import Array

COUNTS = ("queries", "gallery", "without_positive", "ties")


@dataclass(frozen=True)
class RepeatedEvaluation:
    """Evaluations of the same embeddings with other galleries.

    Attributes:
        metrics: name -> mean over the repetitions.
        deviations: name -> their sample standard deviation, with n - 1.
        repetitions: the evaluations themselves.
    """

    metrics: dict[str, float]
    deviations: dict[str, float]
    repetitions: list[Evaluation] = field(repr=False)

    def averaged(self) -> Evaluation:
        """All repetitions as one evaluation: the mean metrics, and of each image the mean over when it was a query.

        So that there are scores of single queries, to draw for intervals and to compare models by. There is no one
        first rank.
        """
        columns = {
            name: pd.concat([pd.Series(run.per_query[name], run.query_rows) for run in self.repetitions])
            for name in self.metrics
        }
        scores = pd.DataFrame({name: each.groupby(level=0).mean() for name, each in columns.items()})
        facts = self.to_dict()
        return Evaluation(
            dict(self.metrics), facts["protocol"], len(scores), facts["gallery"], facts["without_positive"],
            {name: scores[name].to_numpy() for name in self.metrics}, scores.index.to_numpy(), facts["ties"],
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Means and deviations, ready for JSON; queries without a positive and ties are the most of any repetition."""
        return {
            "protocol": f"one random gallery image a class, {len(self.repetitions)} times",
            **{name: max(getattr(run, name) for run in self.repetitions) for name in COUNTS},
            "metrics": dict(self.metrics),
            "deviations": dict(self.deviations),
        }

    def __str__(self) -> str:
        facts, width = self.to_dict(), max(map(len, self.metrics))
        lines = [headline(facts["protocol"], *(facts[name] for name in COUNTS))]
        lines += [
            f"{name:<{width}}   {100 * value:6.2f} % ± {100 * self.deviations[name]:.2f}"
            for name, value in self.metrics.items()
        ]
        return "\n".join(lines)


def evaluate_vehicle_id(
    embeddings: Array,
    table: Table,
    repeats: int = 10,
    seed: int = 0,
    recall_at: Sequence[int] = (1, 5),
    chunk: int | None = None,
) -> RepeatedEvaluation:
    """Score by the protocol of VehicleID (Liu et al., "Deep Relative Distance Learning", CVPR 2016).

    Of every class one image, drawn by chance, is put in the gallery; all others are queries. So each query has one
    image to find, recall@k is CMC at rank k, and all mean precisions are the reciprocal rank or a part of it. The whole
    is repeated with new draws.

    Args:
        embeddings: float [rows, dim].
        table: the classes of one test set (800, 1,600 or 2,400 vehicles), with labels. Its own columns `is_query` and
            `is_gallery`, if it has any, do not count.
        repeats: how often, at least twice.
        seed: of the draws.
        recall_at: the k of each recall@k.
        chunk: queries a block, as in :func:`~vicinal.evaluation.evaluate`.

    Raises:
        InputError: fewer than two repeats, a seed below 0, no class of two images, or as `evaluate`.

    Example:
        >>> import pandas as pd
        >>> table = Table(pd.DataFrame({"label": [7, 7, 7, 8, 8]}))
        >>> evaluate_vehicle_id(np.eye(2)[[0, 0, 0, 1, 1]], table, recall_at=[1]).metrics["recall@1"]
        1.0
    """
    if not (is_whole(repeats) and repeats >= 2):
        raise InputError(f"repeats is {repeats}; it must be a whole number, at least 2")
    if not (is_whole(seed) and seed >= 0):
        raise InputError(f"seed is {seed}; it must be a whole number from 0 up")
    if len(table) and table.class_counts.max() < 2:
        raise InputError("every class has one image, which goes to the gallery; queries take classes of two or more")
    runs = [
        evaluate(embeddings, _with_gallery(table, np.random.default_rng([seed, number])), recall_at, chunk)
        for number in range(repeats)
    ]
    values = {name: np.array([run.metrics[name] for run in runs]) for name in runs[0].metrics}
    means = {name: float(each.mean()) for name, each in values.items()}
    return RepeatedEvaluation(means, {name: float(each.std(ddof=1)) for name, each in values.items()}, runs)


def _with_gallery(table: Table, rng: np.random.Generator) -> Table:
    is_gallery = one_of_each(table.labels, rng)
    needed = [column for column in ("label", "group") if table.has(column)]  # paths would be checked every time
    return Table(table.frame[needed].assign(is_query=~is_gallery, is_gallery=is_gallery))


def one_of_each(labels: npt.NDArray[np.int64], rng: np.random.Generator) -> npt.NDArray[np.bool_]:
    """Choose one row of every class, each with the same chance.

    Example:
        >>> chosen = one_of_each(np.array([0, 0, 1, 1, 1]), np.random.default_rng(0))
        >>> chosen[:2].sum(), chosen[2:].sum()
        (np.int64(1), np.int64(1))
    """
    shuffled = rng.permutation(len(labels))
    firsts = np.unique(labels[shuffled], return_index=True)[1]
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[shuffled[firsts]] = True
    return chosen
