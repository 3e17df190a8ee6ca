"""One table of results that every command prints, saves and compares: a row for each metric that was computed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from vicinal.utils.errors import InputError

LABEL = "label"  # the label level of the labels themselves
COLUMNS = {
    "model": "string",
    "stage": "string",
    "method": "string",
    "protocol": "string",
    "group_by": "string",
    "group": "string",
    "label_level": "string",
    "metric": "string",
    "value": "float64",
    "std": "float64",
    "num_repeats": "Int64",
    "low": "float64",
    "high": "float64",
    "difference": "float64",
    "difference_low": "float64",
    "difference_high": "float64",
    "p_value": "float64",
    "num_queries": "Int64",
    "num_without_positive": "Int64",
    "num_gallery": "Int64",
    "num_ties": "Int64",
}
GROUP_CONSTANTS = ("model", "stage", "method", "protocol", "num_gallery")  # the same for all groups of an evaluation


@dataclass(frozen=True, eq=False)
class ResultsTable:
    """The results of one or several evaluations as a long data frame, one row per metric.

    The frame always has these columns, in this order; a cell without a value is missing (`NA` or `NaN`):

    - `model`: the name of the run, model or file; missing in rows that are the mean over all models of the table.
    - `stage`: `plain`, or `reranked` or `refined`; `method`: the re-ranking or refinement, with its parameters.
    - `protocol`: `leave-one-out`, `query/gallery` and the like.
    - `group_by`, `group`: the column of the table and its value that the queries share; missing for all queries.
    - `label_level`: `label`, or the column of the coarse labels that define the positives; for ROxford and RParis the
      difficulty.
    - `metric`, `value`: the name, and the mean over the queries, from 0 to 1.
    - `std`, `num_repeats`: the sample standard deviation over so many runs or random galleries, of which `value` is the
      mean.
    - `low`, `high`: the confidence interval of the value.
    - `difference`, `difference_low`, `difference_high`, `p_value`: the difference to the baseline, its confidence
      interval, and the p-value of the hypothesis that there is none.
    - `num_queries`, `num_without_positive`: the number of queries, and of those without positives, which count in no
      metric of the labels; `num_gallery`: the number of gallery images; `num_ties`: the number of positives that have
      exactly the score of an image that is no positive.

    Attributes:
        frame: the data frame.
        confidence_level: the confidence level of all intervals; None: there are no intervals.
        resample_by: what the intervals resample, `classes` or `queries`; None: nothing was resampled.
        baseline: the model that differences refer to; None: each difference refers to the plain stage of its own model.
        costs: what the models cost, one row per model, as :func:`~vicinal.evaluation.cost_frame` returns
            it; None: that is not known.

    Example:
        >>> import numpy as np
        >>> from vicinal.evaluation import evaluate_arrays
        >>> evaluation = evaluate_arrays(np.eye(2), ["a", "b"], np.eye(2), ["a", "b"], recall_at=[1])
        >>> evaluation.to_results("identity").frame[["model", "metric", "value", "num_queries"]].head(2)
              model    metric  value  num_queries
        0  identity  recall@1    1.0            2
        1  identity     mAP@R    1.0            2
    """

    frame: pd.DataFrame
    confidence_level: float | None = None
    resample_by: str | None = None
    baseline: str | None = None
    costs: pd.DataFrame | None = None

    @classmethod
    def from_metrics(cls, metrics: pd.DataFrame, groups: pd.DataFrame | None = None, **constants: Any) -> ResultsTable:
        """A table of one evaluation.

        Args:
            metrics: one row per metric, whose full name is the index, such as `coarse/mAP`; the column `value` and any
                other columns of the table.
            groups: the metrics of groups of queries, as :func:`~vicinal.evaluation.metrics_by` returns them.
            constants: columns with one value for all rows.
        """
        frame = _typed(metrics.rename_axis("metric").reset_index(), constants)
        if groups is not None:
            counts = ["num_queries", "num_without_positive"]
            rows = groups.rename_axis("group").reset_index().melt(["group", *counts], var_name="metric")
            of_groups = {name: constants.get(name) for name in GROUP_CONSTANTS} | {"group_by": groups.index.name}
            frame = pd.concat([frame, _typed(rows, of_groups)], ignore_index=True)
        return cls(frame)

    @classmethod
    def concat(cls, tables: Iterable[ResultsTable]) -> ResultsTable:
        """The rows of several tables, one after the other, with the other attributes of the first one.

        Raises:
            InputError: the tables have other confidence levels, or resampled something else.
        """
        first, *others = tables
        for other in others:
            if (other.confidence_level, other.resample_by) != (first.confidence_level, first.resample_by):
                raise InputError("the tables have other kinds of intervals; use the same resampling for all")
        return replace(first, frame=pd.concat([first.frame, *(each.frame for each in others)], ignore_index=True))

    @property
    def models(self) -> list[str]:
        """The names of the models, in order."""
        return list(self.frame["model"].dropna().unique())

    def overall(self, model: str | None = None) -> pd.DataFrame:
        """The rows of one model over all queries, indexed by the full name of the metric, such as `coarse/mAP`.

        Args:
            model: its name; None: all models.
        """
        rows = self.frame[self.frame["group"].isna()]
        rows = rows if model is None else rows[rows["model"] == model]
        return rows.set_index(full_names(rows))

    def rename_models(self, rename: Callable[[str], str]) -> ResultsTable:
        """The same results with other names of the models."""

        def renamed(frame: pd.DataFrame) -> pd.DataFrame:
            return frame.assign(model=frame["model"].map(rename, na_action="ignore").astype("string"))

        return replace(
            self,
            frame=renamed(self.frame),
            baseline=None if self.baseline is None else rename(self.baseline),
            costs=None if self.costs is None else renamed(self.costs),
        )

    def to_dict(self) -> dict[str, Any]:
        """The attributes, and under `results` a list of all rows; ready for JSON, with None for missing cells.

        Under `costs` is a list of what each model costs, or None.
        """
        return {
            "confidence_level": self.confidence_level,
            "resample_by": self.resample_by,
            "baseline": self.baseline,
            "costs": None if self.costs is None else _records(self.costs),
            "results": _records(self.frame),
        }

    def to_json(self) -> str:
        """:meth:`to_dict` as text, with one line per row."""
        *attributes, (_, rows) = self.to_dict().items()
        head = "".join(f"  {json.dumps(name)}: {json.dumps(value)},\n" for name, value in attributes)
        lines = ",\n".join(f"    {json.dumps(row)}" for row in rows)
        return f'{{\n{head}  "results": [\n{lines}\n  ]\n}}'

    def to_csv(self) -> str:
        """The frame as comma-separated values; missing cells are empty.

        If it is known what the models cost, each row ends with that of its model.
        """
        frame = self.frame if self.costs is None else self.frame.merge(self.costs, on="model", how="left")
        return frame.to_csv(index=False, lineterminator="\n")

    def __str__(self) -> str:
        from vicinal.evaluation.results_text import results_text

        return results_text(self)


def full_names(rows: pd.DataFrame) -> pd.Series:
    """The full names of the metrics of some rows: `mAP` at the level of the labels, `coarse/mAP` at a coarse level."""
    return (rows["label_level"] + "/" + rows["metric"]).str.removeprefix(f"{LABEL}/").astype(object)


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def _typed(rows: pd.DataFrame, constants: Mapping[str, Any]) -> pd.DataFrame:
    """All columns of the table, with their types; the column `metric` of the rows holds full names."""
    level, _, name = (rows["metric"].astype("string").str.rpartition("/")[part] for part in range(3))
    rows = rows.assign(**constants, label_level=level.where(level != "", LABEL), metric=name)
    return rows.reindex(columns=list(COLUMNS)).astype(COLUMNS)
