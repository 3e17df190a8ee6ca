"""One table of results that every command prints, saves and compares: a row for each metric that was computed."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from vicinal.evaluation.model_costs import costs_text
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
MAX_GROUPS = 10  # that are shown


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
    - `std`, `num_repeats`: the sample standard deviation over this many runs or galleries; `value` is their mean.
    - `low`, `high`: the confidence interval of the value.
    - `difference`, `difference_low`, `difference_high`, `p_value`: the difference to the baseline, its confidence
      interval, and the p-value of the hypothesis that there is none.
    - `num_queries`, `num_without_positive`: the number of queries, and of those without positives, which count in no
      metric of the labels; `num_gallery`: the number of gallery images; `num_ties`: the number of positives that have
      exactly the score of an image that is not a positive.

    Attributes:
        frame: the data frame.
        confidence_level: the confidence level of all intervals; None: without intervals.
        resample_by: the resampled units, `classes` or `queries`; None: without resampling.
        baseline: the model that differences refer to; None: each difference refers to the plain stage of its own model.
        costs: the costs of the models, one row per model, as :func:`~vicinal.evaluation.cost_frame` returns
            it; None: unknown.

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
        frame = _with_column_types(metrics.rename_axis("metric").reset_index(), constants)
        if groups is not None:
            counts = ["num_queries", "num_without_positive"]
            rows = groups.rename_axis("group").reset_index().melt(["group", *counts], var_name="metric")
            of_groups = {name: constants.get(name) for name in GROUP_CONSTANTS} | {"group_by": groups.index.name}
            frame = pd.concat([frame, _with_column_types(rows, of_groups)], ignore_index=True)
        return cls(frame)

    @classmethod
    def concat(cls, tables: Iterable[ResultsTable]) -> ResultsTable:
        """The rows of several tables, one after the other, with the other attributes of the first one.

        Raises:
            InputError: the tables differ in their confidence level or in their resampled units.
        """
        first, *others = tables
        for other in others:
            if (other.confidence_level, other.resample_by) != (first.confidence_level, first.resample_by):
                raise InputError("the tables have different kinds of intervals; use the same resampling for all")
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

        `costs` is a list of the costs of each model, or None.
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

        If the costs of the models are known, each row ends with the costs of its model.
        """
        frame = self.frame if self.costs is None else self.frame.merge(self.costs, on="model", how="left")
        return frame.to_csv(index=False, lineterminator="\n")

    def __str__(self) -> str:

        return results_text(self)


def full_names(rows: pd.DataFrame) -> pd.Series:
    """The full names of the metrics of some rows: `mAP` at the level of the labels, `coarse/mAP` at a coarse level."""
    return (rows["label_level"] + "/" + rows["metric"]).str.removeprefix(f"{LABEL}/").astype(object)


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def _with_column_types(rows: pd.DataFrame, constants: Mapping[str, Any]) -> pd.DataFrame:
    """All columns of the table, with their types; the column `metric` of the rows holds full names."""
    level, _, name = (rows["metric"].astype("string").str.rpartition("/")[part] for part in range(3))
    rows = rows.assign(**constants, label_level=level.where(level != "", LABEL), metric=name)
    return rows.reindex(columns=list(COLUMNS)).astype(COLUMNS)


def results_text(results: ResultsTable) -> str:
    """Lay out a table of results.

    Two compared models, and the stages of one model, are shown side by side. With more models, or if their costs are
    known, each metric has one row per model. Models that are not compared follow one another, after their costs. Of
    averaged runs only the mean is shown.
    """
    frame, models = results.frame, results.models
    is_mean = frame["model"].isna()
    if is_mean.any():
        return _format_block(results, frame[is_mean])
    if results.baseline is not None and (len(models) > 2 or results.costs is not None):
        return _table_of_models(results)
    if results.baseline is not None or len(models) == 1:
        return _format_block(results, frame)
    blocks = [f"{model}\n{_format_block(results, frame[frame['model'] == model])}" for model in models]
    return "\n\n".join([*_cost_lines(results), *blocks])


def has_many_ties(num_ties: int, num_queries: int) -> bool:
    """Whether more positives are tied than happens by chance, with the precision of float32."""
    return 100 * num_ties > num_queries


def _table_of_models(results: ResultsTable) -> str:
    """The costs of the models, then the metrics of compared models, each with one row per model."""
    columns = {model: results.overall(model) for model in results.models}
    cells = {
        metric: [
            [metric, "value", "difference"],
            *([name, _format_value(row), "" if pd.isna(row.difference) else _format_difference(row)]
              for name, rows in columns.items() for row in rows.loc[[metric]].itertuples()),
        ]
        for metric in columns[results.models[0]].index
    }  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*itertools.chain(*cells.values()), strict=True)]
    blocks = ["\n".join("   ".join(map(str.ljust, row, widths)).rstrip() for row in rows) for rows in cells.values()]
    return "\n\n".join(["\n".join(_header_lines(results, columns)), *_cost_lines(results), *blocks])


def _cost_lines(results: ResultsTable) -> list[str]:
    return [] if results.costs is None else [costs_text(results.costs)]


def _format_block(results: ResultsTable, frame: pd.DataFrame) -> str:
    overall = frame[frame["group"].isna()]
    by = ["model"] if overall["model"].nunique() > 1 else ["stage"]
    columns = {str(name): rows.set_index(full_names(rows)) for (name,), rows in overall.groupby(by, sort=False)}
    first = next(iter(columns.values()))
    cells = [["", *first.index]]
    for name, rows in columns.items():
        cells.append([name, *(_format_value(row) for row in rows.itertuples())])
        if rows["difference"].notna().any():
            cells.append(["difference", *(_format_difference(row) for row in rows.itertuples())])
    widths = [max(map(len, column)) for column in cells]
    lines = ["   ".join(map(str.ljust, row, widths)).rstrip() for row in zip(*cells, strict=True)]
    return "\n".join(
        [*_header_lines(results, columns), *lines[len(columns) == 1 :], *_group_lines(frame, list(first.index))]
    )


def _header_lines(results: ResultsTable, columns: dict[str, pd.DataFrame]) -> list[str]:
    """Protocol, numbers of images and remarks, above the metrics."""
    rows, first = pd.concat(columns), _first_row(next(iter(columns.values())))
    intervals = f"{100 * (results.confidence_level or 0):g} % confidence intervals"
    with_method = rows.dropna(subset="method").drop_duplicates(["stage", "method"])
    methods = [f"{row.stage}: {row.method}" for row in with_method.itertuples()]
    if pd.isna(first.model):
        mean = f"{first.protocol}, mean of {first.num_repeats} runs ± standard deviation"
        return [mean, *methods, f"{intervals} of the mean in brackets"]
    head = f"{first.protocol}: {first.num_queries:,} queries, {first.num_gallery:,} gallery images"
    if first.num_without_positive:
        head += f" ({first.num_without_positive:,} queries without a positive left out)"
    if len(columns) == 1 and has_many_ties(first.num_ties, first.num_queries):
        head += f" ({first.num_ties:,} positives tied with other images)"
    lines = [head, *methods]
    for name, each in columns.items() if len(columns) > 1 else []:
        first = _first_row(each)
        if has_many_ties(first.num_ties, first.num_queries):
            lines.append(f"{name}: {first.num_ties:,} positives tied with other images")
    if rows["low"].notna().any():
        lines.append(f"{intervals} in brackets, from resampled {results.resample_by}")
    if rows["difference"].notna().any():
        lines.append(f"differences to {results.baseline or next(iter(columns))} in percentage points")
    return lines


def _first_row(rows: pd.DataFrame) -> Any:
    return next(rows.itertuples())


def _format_value(row: Any) -> str:
    text = f"{100 * row.value:6.2f} %"
    if pd.notna(row.std):
        text += f" ± {100 * row.std:.2f}"
    return text + (f" [{100 * row.low:.2f}, {100 * row.high:.2f}]" if pd.notna(row.low) else "")


def _format_difference(row: Any) -> str:
    text = f"{100 * row.difference:+6.2f}"
    if pd.isna(row.p_value):
        return text
    return f"{text} [{100 * row.difference_low:+.2f}, {100 * row.difference_high:+.2f}] p {row.p_value:.3g}"


def _group_lines(frame: pd.DataFrame, metrics: list[str]) -> list[str]:
    """The groups with the lowest metrics, and the macro average, in which every group counts the same."""
    rows = frame[frame["group"].notna()]
    if not len(rows):
        return []
    wide = rows.assign(name=full_names(rows)).pivot(index="group", columns="name", values="value")
    wide = wide.rename_axis(columns=None)
    metrics = [name for name in metrics if name in wide]
    scored = wide[metrics].dropna(subset=metrics[0])
    weakest = scored.sort_values([metrics[0], *metrics[1:2]], kind="stable").head(MAX_GROUPS)
    shown = 100 * pd.concat([weakest, scored.mean().to_frame("macro average").T])
    num_queries = rows.groupby("group")["num_queries"].first()
    shown.insert(0, "queries", [*num_queries[weakest.index].astype(str), ""])
    head = f"by {rows['group_by'].iloc[0]}: the weakest of {len(wide):,}, in %"
    return ["", head, *shown.to_string(float_format="{:.2f}".format).splitlines()]
