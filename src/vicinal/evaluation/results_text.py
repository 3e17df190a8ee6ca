"""The table of results as text for a terminal: models and stages side by side, values in percent."""

from __future__ import annotations

import itertools
from typing import Any

import pandas as pd

from vicinal.evaluation.model_costs import costs_text
from vicinal.evaluation.results_table import ResultsTable, full_names

MAX_GROUPS = 10  # that are shown


def results_text(results: ResultsTable) -> str:
    """Lay out a table of results.

    Two models that are compared, and the stages of one model, stand side by side. With more models, or if it is known
    what they cost, each metric has a row per model. Models that are not compared follow each other, after what they
    cost. Of runs that are averaged only the mean is shown.

    Example:
        >>> import numpy as np, pandas as pd
        >>> from vicinal.data.table import Table
        >>> from vicinal.evaluation import compare_models, evaluate
        >>> table = Table(pd.DataFrame({"label": ["cat", "dog", "cat", "dog"]}))
        >>> good, bad = np.array([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.1, 0.9]]), np.eye(4)
        >>> evaluations = {"old": evaluate(bad, table, [1]), "new": evaluate(good, table, [1])}
        >>> print(results_text(compare_models(evaluations, table)))
        leave-one-out: 4 queries, 4 gallery images
        old: 4 positives tied with other images
        95 % confidence intervals in brackets, from resampled classes
        differences to old in percentage points
                      old                       new                         difference
        recall@1       25.00 % [0.00, 50.00]    100.00 % [100.00, 100.00]   +75.00 [+50.00, +100.00] p 0.5
        mAP@R          25.00 % [0.00, 50.00]    100.00 % [100.00, 100.00]   +75.00 [+50.00, +100.00] p 0.5
        R-precision    25.00 % [0.00, 50.00]    100.00 % [100.00, 100.00]   +75.00 [+50.00, +100.00] p 0.5
        mAP            58.33 % [41.67, 75.00]   100.00 % [100.00, 100.00]   +41.67 [+25.00, +58.33] p 0.5
    """
    frame, models = results.frame, results.models
    is_mean = frame["model"].isna()
    if is_mean.any():
        return _block(results, frame[is_mean])
    if results.baseline is not None and (len(models) > 2 or results.costs is not None):
        return _table_of_models(results)
    if results.baseline is not None or len(models) == 1:
        return _block(results, frame)
    blocks = [f"{model}\n{_block(results, frame[frame['model'] == model])}" for model in models]
    return "\n\n".join([*_costs(results), *blocks])


def headline(protocol: str, num_queries: int, num_gallery: int, num_without_positive: int, num_ties: int = 0) -> str:
    """The protocol and the numbers of images of an evaluation, and what may make its metrics misleading.

    Example:
        >>> headline("leave-one-out", 1000, 1000, num_without_positive=3)
        'leave-one-out: 1,000 queries, 1,000 gallery images (3 queries without a positive left out)'
    """
    line = f"{protocol}: {num_queries:,} queries, {num_gallery:,} gallery images"
    if num_without_positive:
        line += f" ({num_without_positive:,} queries without a positive left out)"
    if has_many_ties(num_ties, num_queries):
        line += f" ({num_ties:,} positives tied with other images)"
    return line


def has_many_ties(num_ties: int, num_queries: int) -> bool:
    """Whether more positives are tied than happens by chance, with the precision of float32.

    Example:
        >>> has_many_ties(10, num_queries=1000), has_many_ties(11, num_queries=1000)
        (False, True)
    """
    return 100 * num_ties > num_queries


def _table_of_models(results: ResultsTable) -> str:
    """What models cost, then the metrics of compared models, each with one row per model."""
    columns = {model: results.overall(model) for model in results.models}
    cells = {
        metric: [
            [metric, "value", "difference"],
            *([name, _value(row), "" if pd.isna(row.difference) else _difference(row)]
              for name, rows in columns.items() for row in rows.loc[[metric]].itertuples()),
        ]
        for metric in columns[results.models[0]].index
    }  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*itertools.chain(*cells.values()), strict=True)]
    blocks = ["\n".join("   ".join(map(str.ljust, row, widths)).rstrip() for row in rows) for rows in cells.values()]
    return "\n\n".join(["\n".join(_head(results, columns)), *_costs(results), *blocks])


def _costs(results: ResultsTable) -> list[str]:
    return [] if results.costs is None else [costs_text(results.costs)]


def _block(results: ResultsTable, frame: pd.DataFrame) -> str:
    """Evaluations side by side, under what they have in common."""
    overall = frame[frame["group"].isna()]
    by = ["model"] if overall["model"].nunique() > 1 else ["stage"]
    columns = {str(name): rows.set_index(full_names(rows)) for (name,), rows in overall.groupby(by, sort=False)}
    first = next(iter(columns.values()))
    cells = [["", *first.index]]
    for name, rows in columns.items():
        cells.append([name, *(_value(row) for row in rows.itertuples())])
        if rows["difference"].notna().any():
            cells.append(["difference", *(_difference(row) for row in rows.itertuples())])
    widths = [max(map(len, column)) for column in cells]
    lines = ["   ".join(map(str.ljust, row, widths)).rstrip() for row in zip(*cells, strict=True)]
    return "\n".join([*_head(results, columns), *lines[len(columns) == 1 :], *_groups(frame, list(first.index))])


def _head(results: ResultsTable, columns: dict[str, pd.DataFrame]) -> list[str]:
    """What applies to all columns, and what is special about some."""
    rows, first = pd.concat(columns), _first_row(next(iter(columns.values())))
    intervals = f"{100 * (results.confidence_level or 0):g} % confidence intervals"
    with_method = rows.dropna(subset="method").drop_duplicates(["stage", "method"])
    methods = [f"{row.stage}: {row.method}" for row in with_method.itertuples()]
    if pd.isna(first.model):
        mean = f"{first.protocol}, mean of {first.num_repeats} runs ± standard deviation"
        return [mean, *methods, f"{intervals} of the mean in brackets"]
    num_ties = first.num_ties if len(columns) == 1 else 0
    sizes = first.num_queries, first.num_gallery, first.num_without_positive, num_ties
    lines = [headline(first.protocol, *sizes), *methods]
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


def _value(row: Any) -> str:
    text = f"{100 * row.value:6.2f} %"
    if pd.notna(row.std):
        text += f" ± {100 * row.std:.2f}"
    return text + (f" [{100 * row.low:.2f}, {100 * row.high:.2f}]" if pd.notna(row.low) else "")


def _difference(row: Any) -> str:
    text = f"{100 * row.difference:+6.2f}"
    if pd.isna(row.p_value):
        return text
    return f"{text} [{100 * row.difference_low:+.2f}, {100 * row.difference_high:+.2f}] p {row.p_value:.3g}"


def _groups(frame: pd.DataFrame, metrics: list[str]) -> list[str]:
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
