"""Which metrics stand for single queries on a page."""

from __future__ import annotations

from vicinal.evaluation.protocol import Evaluation


def score_name(evaluation: Evaluation) -> str:
    """The metric by which single queries are ordered: mAP@R, or the best there is."""
    return next((name for name in ("mAP@R", "mAP") if name in evaluation.per_query), next(iter(evaluation.per_query)))


def recall_name(evaluation: Evaluation) -> str:
    """The recall with the smallest k, or the metric of :func:`score_name` where there is none."""
    ks = [int(name[7:]) for name in evaluation.per_query if name.startswith("recall@") and name[7:].isdigit()]
    return f"recall@{min(ks)}" if ks else score_name(evaluation)
