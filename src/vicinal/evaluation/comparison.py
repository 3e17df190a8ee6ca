"""Comparison of models, with intervals of their differences, and averages over runs of one recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from vicinal.data.table import Table
from vicinal.evaluation.bootstrap import common_metrics, confidence_intervals, metric_differences, paired_differences
from vicinal.evaluation.resampling import DEFAULT_RESAMPLING, Resampling, check_confidence_level
from vicinal.evaluation.result import Evaluation, metrics_by
from vicinal.evaluation.results_table import ResultsTable, full_names
from vicinal.utils.errors import InputError, prefixed_errors


def tabulate(
    evaluation: Evaluation,
    table: Table | None = None,
    *,
    model: str = "",
    resampling: Resampling | None = None,
    group_by: str | None = None,
) -> ResultsTable:
    """The results of one evaluation, with confidence intervals and groups of queries on request.

    Args:
        evaluation: of the table.
        table: the evaluated table; needed for groups, and for intervals by resampling classes.
        model: the name of the evaluated model.
        resampling: how confidence intervals are computed; None: there are none.
        group_by: a column of the table: the metrics of each group of queries follow those of all queries.

    Raises:
        InputError: as :func:`~vicinal.evaluation.confidence_intervals` and :func:`~vicinal.evaluation.metrics_by`.

    Example:
        >>> import numpy as np, pandas as pd
        >>> from vicinal.evaluation import evaluate
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog", "dog"]}))
        >>> vectors = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.6, 0.5]])
        >>> print(tabulate(evaluate(vectors, table, recall_at=[1]), table, resampling=Resampling(), group_by="label"))
        leave-one-out: 4 queries, 4 gallery images
        95 % confidence intervals in brackets, from resampled classes
        recall@1       75.00 % [50.00, 100.00]
        mAP@R          75.00 % [50.00, 100.00]
        R-precision    75.00 % [50.00, 100.00]
        mAP            83.33 % [66.67, 100.00]
        <BLANKLINE>
        by label: the weakest of 2, in %
                      queries  recall@1  mAP@R  R-precision    mAP
        dog                 2     50.00  50.00        50.00  66.67
        cat                 2    100.00 100.00       100.00 100.00
        macro average             75.00  75.00        75.00  83.33
    """
    if group_by is not None and table is None:
        raise InputError(f"groups by {group_by} need the table that was evaluated; give it")
    groups = None if group_by is None or table is None else metrics_by(evaluation, table, group_by)
    intervals = None if resampling is None else confidence_intervals(evaluation, table, resampling)
    return _described(evaluation.to_results(model, intervals=intervals, groups=groups), resampling)


def compare_models(
    evaluations: Mapping[str, Evaluation], table: Table | None, resampling: Resampling = DEFAULT_RESAMPLING
) -> ResultsTable:
    r"""Compare several models with the first one, on the same queries: intervals, differences and p-values.

    Args:
        evaluations: name of the model -> its evaluation of the table, two or more.
        table: the evaluated table, with labels; it may be None when resampling queries.
        resampling: how intervals and p-values are computed.

    Returns:
        The metrics that all models have; the first model is the baseline.

    Raises:
        InputError: fewer than two models, or as :func:`~vicinal.evaluation.paired_differences`.

    Example:
        >>> import numpy as np, pandas as pd
        >>> from vicinal.evaluation import evaluate
        >>> table = Table(pd.DataFrame({"label": ["cat", "dog", "cat", "dog"]}))
        >>> good, bad = np.array([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.1, 0.9]]), np.eye(4)
        >>> evaluations = {name: evaluate(vectors, table, [1]) for name, vectors in (("old", bad), ("new", good))}
        >>> results = compare_models(evaluations, table)
        >>> results.overall("new").loc["recall@1", ["value", "difference", "p_value"]].tolist()
        [1.0, 0.75, 0.5]
    """
    if len(evaluations) < 2:
        raise InputError(f"{len(evaluations)} models to compare; give at least two")
    (baseline, first), *others = evaluations.items()
    parts = [first.to_results(baseline, intervals=confidence_intervals(first, table, resampling))]
    for model, evaluation in others:
        with prefixed_errors(f"{model} against {baseline}"):
            differences = paired_differences(first, evaluation, table, resampling)
        intervals = confidence_intervals(evaluation, table, resampling)
        parts.append(evaluation.to_results(model, intervals=intervals, differences=differences))
    results = ResultsTable.concat(parts)
    is_common = full_names(results.frame).isin(common_metrics(*evaluations.values()))
    results = replace(results, frame=results.frame[is_common].reset_index(drop=True), baseline=baseline)
    return _described(results, resampling)


def compare_reranking(
    plain: Evaluation,
    reranked: Evaluation,
    table: Table | None = None,
    *,
    model: str = "",
    resampling: Resampling | None = None,
) -> ResultsTable:
    """The results of one model before and after re-ranking or refinement, with the differences.

    Args:
        plain: the evaluation without re-ranking.
        reranked: the evaluation with re-ranking or refinement.
        table: the evaluated table; needed for intervals by resampling classes.
        model: the name of the evaluated model.
        resampling: how intervals and p-values are computed; None: there are none.

    Raises:
        InputError: as :func:`~vicinal.evaluation.paired_differences`.

    Example:
        >>> import numpy as np, pandas as pd
        >>> from vicinal.evaluation import evaluate
        >>> from vicinal.retrieval import ContextualReranking
        >>> angles = np.array([0.0, 0.5, -0.4, 0.2, -0.3, 0.65])
        >>> vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
        >>> table = Table(pd.DataFrame({"label": ["a", "b", "a", "b", "a", "b"]}))
        >>> plain = evaluate(vectors, table, recall_at=[1])
        >>> print(compare_reranking(plain, evaluate(vectors, table, recall_at=[1], rerank=ContextualReranking(k=4))))
        leave-one-out: 6 queries, 6 gallery images
        reranked: ContextualReranking(k=4, beta=0.1, epsilon=0.0)
        differences to plain in percentage points
                      plain      reranked   difference
        recall@1       66.67 %   100.00 %   +33.33
        mAP@R          75.00 %    83.33 %    +8.33
        R-precision    83.33 %    83.33 %    +0.00
        mAP            86.11 %    94.44 %    +8.33
    """
    before = after = None
    differences = metric_differences(plain, reranked)
    if resampling is not None:
        before, after = (confidence_intervals(each, table, resampling) for each in (plain, reranked))
        differences = paired_differences(plain, reranked, table, resampling)
    parts = [
        plain.to_results(model, intervals=before),
        reranked.to_results(model, intervals=after, differences=differences),
    ]
    return _described(ResultsTable.concat(parts), resampling)


def _described(results: ResultsTable, resampling: Resampling | None) -> ResultsTable:
    if resampling is None:
        return results
    return replace(results, confidence_level=resampling.confidence_level, resample_by=resampling.resample_by)


def average_runs(evaluations: Mapping[str, Evaluation], confidence_level: float = 0.95) -> ResultsTable:
    """Average runs that differ by chance only, such as by their seeds.

    The interval of the mean is about randomness in training, not in the choice of the test classes; see
    :func:`~vicinal.evaluation.confidence_intervals` for that.

    Args:
        evaluations: name of the run -> its evaluation, two or more, with the same metrics.
        confidence_level: of the intervals of the mean, between 0 and 1.

    Returns:
        The rows of every run, then those of the mean, whose model is missing.

    Raises:
        InputError: fewer than two runs, an invalid confidence level, or different metrics.

    Example:
        >>> import numpy as np
        >>> from vicinal.evaluation import evaluate_arrays
        >>> rng, labels = np.random.default_rng(0), np.arange(20) % 4
        >>> runs = {f"seed {seed}": rng.normal(size=(20, 3)) + 2 * np.eye(4, 3)[labels] for seed in (0, 1)}
        >>> evaluations = {name: evaluate_arrays(each, labels, each, labels, exclude_self=np.arange(20), recall_at=[1])
        ...                for name, each in runs.items()}
        >>> average_runs(evaluations).frame[["model", "metric", "value", "std"]].iloc[[0, 4, 8]]
            model    metric  value       std
        0  seed 0  recall@1   0.55       NaN
        4  seed 1  recall@1   0.65       NaN
        8    <NA>  recall@1   0.60  0.070711
    """
    summary = summarize_runs([each.metrics for each in evaluations.values()], confidence_level)
    runs = [evaluation.to_results(run) for run, evaluation in evaluations.items()]
    first = next(iter(evaluations.values()))
    mean = ResultsTable.from_metrics(summary, protocol=first.protocol, stage=first.stage, method=first.method)
    return replace(ResultsTable.concat([*runs, mean]), confidence_level=confidence_level)


def summarize_runs(metrics: Sequence[Mapping[str, float]], confidence_level: float = 0.95) -> pd.DataFrame:
    """The mean of metrics over several runs, their sample standard deviation, and the interval of the mean.

    Args:
        metrics: the metrics of each run, two or more, all with the same names.
        confidence_level: of the intervals, by Student's t, between 0 and 1.

    Returns:
        One row per metric, whose name is the index, with the columns `value`, `std` (with n - 1), `low`, `high` and
        `num_repeats`.

    Raises:
        InputError: fewer than two runs, an invalid confidence level, or different metrics.

    Example:
        >>> summarize_runs([{"mAP": 0.5}, {"mAP": 0.75}])[["value", "num_repeats"]]
             value  num_repeats
        mAP  0.625            2
    """
    from scipy.special import stdtrit

    check_confidence_level(confidence_level)
    if len(metrics) < 2:
        raise InputError(f"{len(metrics)} runs; a standard deviation needs at least two")
    for number, run in enumerate(metrics):
        if set(run) != set(metrics[0]):
            name = sorted(set(run) ^ set(metrics[0]))[0]
            raise InputError(f"run {number} and run 0 do not both have {name!r}; all runs need the same metrics")
    values = pd.DataFrame(list(metrics), dtype="float64")
    mean, std, num_runs = values.mean(), values.std(ddof=1), len(metrics)
    margin = float(stdtrit(num_runs - 1, (1 + confidence_level) / 2)) * std / num_runs**0.5
    return pd.DataFrame(
        {"value": mean, "std": std, "low": mean - margin, "high": mean + margin, "num_repeats": num_runs}
    )
