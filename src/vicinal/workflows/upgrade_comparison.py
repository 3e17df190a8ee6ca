"""The comparison of an index's vectors with those of another model, before these replace them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from vicinal.evaluation.bootstrap import bootstrap_bounds
from vicinal.evaluation.resampling import Resampling, UnitTotals
from vicinal.retrieval.index.interface import ImageIndex
from vicinal.utils.arrays import Floats, Integers

NUM_QUERIES, K = 1_000, 10
Search = Callable[[Integers, int], Integers]


@dataclass(frozen=True)
class GenerationComparison:
    """What another model changes, for a sample of the images of an index.

    Attributes:
        num_queries: the images that were searched for; none finds itself.
        metrics: one row per metric, with the columns `value`, `low` and `high` (95 %).

    Example:
        >>> print(GenerationComparison(9, pd.DataFrame({"value": 0.5, "low": 0.4, "high": 0.6}, index=["overlap@10"])))
        9 images               value    low   high
        overlap@10            0.5000 0.4000 0.6000
    """

    num_queries: int
    metrics: pd.DataFrame

    def to_dict(self) -> dict[str, object]:
        """Return plain values, ready for JSON."""
        rows = {str(name): dict(row) for name, row in self.metrics.iterrows()}
        return {"queries": self.num_queries, **rows}

    def __str__(self) -> str:
        lines = [f"{f'{self.num_queries:,} images':20s} {'value':>7s} {'low':>6s} {'high':>6s}"]
        for row in self.metrics.itertuples():
            lines.append(f"{row.Index!s:20s} {row.value:7.4f} {row.low:6.4f} {row.high:6.4f}")
        return "\n".join(lines)


def compare_generations(index: ImageIndex, ids: Integers, old: Search, new: Search) -> GenerationComparison:
    """Compare the search results of an index with those of another generation, for a sample of its images.

    Metrics are the fraction of the first ten neighbors that both find and, if there are labels, recall@1 of both and
    its difference, for images whose class has another image. Intervals are those of the bootstrap over the images.
    `ids`, ascending, are searched in both.
    """
    queries = np.sort(np.random.default_rng(0).choice(ids, min(NUM_QUERIES, len(ids)), replace=False))
    k = min(K, len(ids) - 1)
    if not k:
        return GenerationComparison(len(queries), pd.DataFrame(columns=["value", "low", "high"]))
    before, after = (_others(search(queries, k + 1), queries) for search in (old, new))
    scores = {f"overlap@{k}": (before[:, :, None] == after[:, None, :]).any(axis=2).mean(axis=1)}
    if "label" in index.column_kinds:
        label_of = _labels(index, ids)
        own, counts = label_of(queries), label_of(ids).value_counts()
        is_scored = own.isin(counts.index[counts > 1]).to_numpy()
        hits = [np.where(is_scored, own.to_numpy() == label_of(each[:, 0]).to_numpy(), np.nan)
                for each in (before, after)]  # fmt: skip
        scores |= {"recall@1 before": hits[0], "recall@1 after": hits[1], "difference": hits[1] - hits[0]}
    return GenerationComparison(len(queries), _with_intervals(scores))


def _others(found: Integers, ids: Integers) -> Integers:
    """The neighbors of images without these themselves, int64 [queries, k]."""
    itself_last = np.argsort(found == ids[:, None], axis=1, kind="stable")[:, :-1]
    return np.take_along_axis(found, itself_last, axis=1)


def _labels(index: ImageIndex, ids: Integers) -> Callable[[Integers], pd.Series[str]]:
    labels = index.lookup(ids, skip_unknown=True).set_index("id")["label"].astype("object").reindex(ids)
    return lambda some: labels.reindex(some).reset_index(drop=True)


def _with_intervals(scores: Mapping[str, Floats]) -> pd.DataFrame:
    """The mean of each metric over the queries that have a score, and its bounds."""
    values = np.column_stack(list(scores.values())).astype(np.float64)
    is_scored = ~np.isnan(values)
    keep = np.flatnonzero(is_scored.any(axis=0))
    totals = UnitTotals(np.where(is_scored, values, 0.0)[:, keep], is_scored[:, keep].astype(np.float64))
    low, high = bootstrap_bounds(totals, Resampling(resample_by="queries"))
    names = list(scores)
    return pd.DataFrame(
        {"value": totals.means, "low": low, "high": high}, index=[names[column] for column in keep.tolist()]
    )
