"""Several runs of one recipe, such as with several seeds: the mean of each metric and its standard deviation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from vicinal.evaluation.resampling import check_confidence_level
from vicinal.evaluation.result import Evaluation
from vicinal.evaluation.results_table import ResultsTable
from vicinal.utils.errors import InputError


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
        InputError: fewer than two runs, an impossible confidence level, or other metrics.

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
        InputError: fewer than two runs, an impossible confidence level, or other metrics.

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
