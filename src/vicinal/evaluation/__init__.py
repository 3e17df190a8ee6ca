"""How well neighbours share a class: `evaluate` takes embeddings and the table of what they are."""

from vicinal.evaluation.breakdown import metrics_by
from vicinal.evaluation.clustering import Clustering, cluster, cluster_metrics
from vicinal.evaluation.comparison import Comparison, compare
from vicinal.evaluation.hierarchy import coarse_columns
from vicinal.evaluation.metrics import metric_of
from vicinal.evaluation.models_compared import ModelsCompared, compare_models
from vicinal.evaluation.protocol import evaluate, evaluate_arrays, wrong_labels
from vicinal.evaluation.ranking import Ranks, Relevance, level_ranks, positive_ranks
from vicinal.evaluation.result import Evaluation
from vicinal.evaluation.revisited import all_difficulties, evaluate_revisited
from vicinal.evaluation.runs_averaged import RunsAveraged, average_runs
from vicinal.evaluation.scorecard import Scorecard
from vicinal.evaluation.uncertainty import Difference, Interval, Summary, interval, over_runs, paired
from vicinal.evaluation.vehicle_id import RepeatedEvaluation, evaluate_vehicle_id

__all__ = [
    "Clustering",
    "Comparison",
    "Difference",
    "Evaluation",
    "Interval",
    "ModelsCompared",
    "Ranks",
    "Relevance",
    "RepeatedEvaluation",
    "RunsAveraged",
    "Scorecard",
    "Summary",
    "all_difficulties",
    "average_runs",
    "cluster",
    "cluster_metrics",
    "coarse_columns",
    "compare",
    "compare_models",
    "evaluate",
    "evaluate_arrays",
    "evaluate_revisited",
    "evaluate_vehicle_id",
    "interval",
    "level_ranks",
    "metric_of",
    "metrics_by",
    "over_runs",
    "paired",
    "positive_ranks",
    "wrong_labels",
]
