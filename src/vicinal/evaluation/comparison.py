"""Tables of results: one evaluation, several models side by side, and one model before and after re-ranking."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from vicinal.data.table import Table
from vicinal.evaluation.bootstrap import confidence_intervals
from vicinal.evaluation.breakdown import metrics_by
from vicinal.evaluation.paired import common_metrics, metric_differences, paired_differences
from vicinal.evaluation.resampling import DEFAULT_RESAMPLING, Resampling
from vicinal.evaluation.result import Evaluation
from vicinal.evaluation.results_table import ResultsTable, full_names
from vicinal.utils.errors import InputError


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
        table: what was evaluated; needed for groups, and for intervals by resampling classes.
        model: the name of what was evaluated.
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
        table: what was evaluated, with labels; it may be None when resampling queries.
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
        try:
            differences = paired_differences(first, evaluation, table, resampling)
        except InputError as error:
            raise InputError(f"{model} against {baseline}: {error}") from None
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
        table: what was evaluated; needed for intervals by resampling classes.
        model: the name of what was evaluated.
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
