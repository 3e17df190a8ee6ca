"""Evaluation: metrics of embeddings and a table of labels, their confidence intervals, and one table of results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vicinal.utils.imports import lazy_imports

if TYPE_CHECKING:
    from vicinal.evaluation.array_protocol import evaluate_arrays
    from vicinal.evaluation.benchmark_protocols import evaluate_listed_positives, evaluate_met, evaluate_vehicle_id
    from vicinal.evaluation.bootstrap import confidence_intervals, paired_differences
    from vicinal.evaluation.calibration import calibrate, operating_points
    from vicinal.evaluation.clustering import Clustering, cluster, cluster_agreement, cluster_metrics, cluster_threshold
    from vicinal.evaluation.comparison import average_runs, compare_models, compare_reranking, summarize_runs, tabulate
    from vicinal.evaluation.compatibility import evaluate_across, upgrade_warnings
    from vicinal.evaluation.identification import IdentificationEvaluation, enrolled_rows, evaluate_identification
    from vicinal.evaluation.metrics import Ranks, metric_by_name
    from vicinal.evaluation.model_costs import ModelCost, cost_frame
    from vicinal.evaluation.open_set import (
        OpenSetScores,
        fnir_at_fpir,
        identification_curve,
        ood_scores,
        open_set_auroc,
        open_set_scores,
    )
    from vicinal.evaluation.protocol import (
        coarse_columns,
        count_noisy_labels,
        evaluate,
        query_gallery_rows,
    )
    from vicinal.evaluation.ranking import level_ranks, positive_ranks
    from vicinal.evaluation.relevance import Relevance
    from vicinal.evaluation.reranking_weight import WeightChoice, choose_weight
    from vicinal.evaluation.resampling import Resampling, count_query_classes
    from vicinal.evaluation.result import Evaluation, metrics_by
    from vicinal.evaluation.results_table import ResultsTable
    from vicinal.evaluation.revisited import evaluate_revisited, evaluate_revisited_table, merge_difficulties
    from vicinal.evaluation.verification import PairsEvaluation, evaluate_pairs, verification_rates

__all__ = [
    "Clustering",
    "Evaluation",
    "IdentificationEvaluation",
    "ModelCost",
    "OpenSetScores",
    "PairsEvaluation",
    "Ranks",
    "Relevance",
    "Resampling",
    "ResultsTable",
    "WeightChoice",
    "average_runs",
    "calibrate",
    "choose_weight",
    "cluster",
    "cluster_agreement",
    "cluster_metrics",
    "cluster_threshold",
    "coarse_columns",
    "compare_models",
    "compare_reranking",
    "confidence_intervals",
    "cost_frame",
    "count_noisy_labels",
    "count_query_classes",
    "enrolled_rows",
    "evaluate",
    "evaluate_across",
    "evaluate_arrays",
    "evaluate_identification",
    "evaluate_listed_positives",
    "evaluate_met",
    "evaluate_pairs",
    "evaluate_revisited",
    "evaluate_revisited_table",
    "evaluate_vehicle_id",
    "fnir_at_fpir",
    "identification_curve",
    "level_ranks",
    "merge_difficulties",
    "metric_by_name",
    "metrics_by",
    "ood_scores",
    "open_set_auroc",
    "open_set_scores",
    "operating_points",
    "paired_differences",
    "positive_ranks",
    "query_gallery_rows",
    "summarize_runs",
    "tabulate",
    "upgrade_warnings",
    "verification_rates",
]

__getattr__, __dir__ = lazy_imports(__name__)
