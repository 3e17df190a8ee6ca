"""How well neighbours share a class: `evaluate` takes embeddings and the table of what they are."""

from vicinal.evaluation.breakdown import metrics_by
from vicinal.evaluation.clustering import Clustering, cluster, cluster_metrics
from vicinal.evaluation.comparison import Comparison, compare
from vicinal.evaluation.protocol import Evaluation, evaluate, evaluate_arrays, wrong_labels

__all__ = [
    "Clustering",
    "Comparison",
    "Evaluation",
    "cluster",
    "cluster_metrics",
    "compare",
    "evaluate",
    "evaluate_arrays",
    "metrics_by",
    "wrong_labels",
]
