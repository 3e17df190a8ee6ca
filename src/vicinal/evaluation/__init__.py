"""Evaluation: metrics of embeddings and a table of labels, their confidence intervals, and one table of results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vicinal.utils.imports import lazy_imports

if TYPE_CHECKING:
    from vicinal.evaluation.array_protocol import evaluate_arrays as evaluate_arrays
    from vicinal.evaluation.benchmark_protocols import evaluate_listed_positives as evaluate_listed_positives
    from vicinal.evaluation.benchmark_protocols import evaluate_met as evaluate_met
    from vicinal.evaluation.benchmark_protocols import evaluate_vehicle_id as evaluate_vehicle_id
    from vicinal.evaluation.bootstrap import confidence_intervals as confidence_intervals
    from vicinal.evaluation.bootstrap import paired_differences as paired_differences
    from vicinal.evaluation.calibration import calibrate as calibrate
    from vicinal.evaluation.calibration import operating_points as operating_points
    from vicinal.evaluation.clustering import Clustering as Clustering
    from vicinal.evaluation.clustering import cluster as cluster
    from vicinal.evaluation.clustering import cluster_agreement as cluster_agreement
    from vicinal.evaluation.clustering import cluster_metrics as cluster_metrics
    from vicinal.evaluation.clustering import cluster_threshold as cluster_threshold
    from vicinal.evaluation.comparison import average_runs as average_runs
    from vicinal.evaluation.comparison import compare_models as compare_models
    from vicinal.evaluation.comparison import compare_reranking as compare_reranking
    from vicinal.evaluation.comparison import summarize_runs as summarize_runs
    from vicinal.evaluation.comparison import tabulate as tabulate
    from vicinal.evaluation.compatibility import evaluate_across as evaluate_across
    from vicinal.evaluation.compatibility import upgrade_warnings as upgrade_warnings
    from vicinal.evaluation.identification import IdentificationEvaluation as IdentificationEvaluation
    from vicinal.evaluation.identification import enrolled_rows as enrolled_rows
    from vicinal.evaluation.identification import evaluate_identification as evaluate_identification
    from vicinal.evaluation.metrics import Ranks as Ranks
    from vicinal.evaluation.metrics import metric_by_name as metric_by_name
    from vicinal.evaluation.model_costs import ModelCost as ModelCost
    from vicinal.evaluation.model_costs import cost_frame as cost_frame
    from vicinal.evaluation.open_set import OpenSetScores as OpenSetScores
    from vicinal.evaluation.open_set import fnir_at_fpir as fnir_at_fpir
    from vicinal.evaluation.open_set import identification_curve as identification_curve
    from vicinal.evaluation.open_set import ood_scores as ood_scores
    from vicinal.evaluation.open_set import open_set_auroc as open_set_auroc
    from vicinal.evaluation.open_set import open_set_scores as open_set_scores
    from vicinal.evaluation.protocol import coarse_columns as coarse_columns
    from vicinal.evaluation.protocol import count_noisy_labels as count_noisy_labels
    from vicinal.evaluation.protocol import evaluate as evaluate
    from vicinal.evaluation.protocol import query_gallery_rows as query_gallery_rows
    from vicinal.evaluation.ranking import level_ranks as level_ranks
    from vicinal.evaluation.ranking import positive_ranks as positive_ranks
    from vicinal.evaluation.relevance import Relevance as Relevance
    from vicinal.evaluation.reranking_weight import WeightChoice as WeightChoice
    from vicinal.evaluation.reranking_weight import choose_weight as choose_weight
    from vicinal.evaluation.resampling import Resampling as Resampling
    from vicinal.evaluation.resampling import count_query_classes as count_query_classes
    from vicinal.evaluation.result import Evaluation as Evaluation
    from vicinal.evaluation.result import metrics_by as metrics_by
    from vicinal.evaluation.results_table import ResultsTable as ResultsTable
    from vicinal.evaluation.revisited import evaluate_revisited as evaluate_revisited
    from vicinal.evaluation.revisited import evaluate_revisited_table as evaluate_revisited_table
    from vicinal.evaluation.revisited import merge_difficulties as merge_difficulties
    from vicinal.evaluation.verification import PairsEvaluation as PairsEvaluation
    from vicinal.evaluation.verification import evaluate_pairs as evaluate_pairs
    from vicinal.evaluation.verification import verification_rates as verification_rates


__getattr__, __dir__ = lazy_imports(__name__)
