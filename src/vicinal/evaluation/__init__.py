"""How well neighbours share a class: `evaluate` takes embeddings and the table of what they are."""

from vicinal.evaluation.comparison import Comparison, compare
from vicinal.evaluation.protocol import Evaluation, evaluate, evaluate_arrays, wrong_labels

__all__ = ["Comparison", "Evaluation", "compare", "evaluate", "evaluate_arrays", "wrong_labels"]
