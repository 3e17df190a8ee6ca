"""The weight of local features in a re-ranking, chosen on classes that will not be searched for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vicinal.data.table import Table
from vicinal.evaluation.bootstrap import paired_differences
from vicinal.evaluation.protocol import evaluate
from vicinal.evaluation.resampling import DEFAULT_RESAMPLING, Resampling
from vicinal.retrieval.reranking.local import LocalReranking
from vicinal.retrieval.scores import Array
from vicinal.utils.errors import InputError

WEIGHTS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
METRIC = "mAP@R"


@dataclass(frozen=True)
class WeightChoice:
    """The chosen weight of a :class:`~vicinal.retrieval.LocalReranking`.

    Attributes:
        weight: the chosen weight; 0 if the interval of the best gain includes 0.
        plain: mAP@R without re-ranking.
        scores: weight -> mAP@R.
        gain_interval: confidence interval of the gain in mAP@R of the best weight.
    """

    weight: float
    plain: float
    scores: dict[float, float]
    gain_interval: tuple[float, float]

    def __str__(self) -> str:
        best = max(self.scores, key=self.scores.__getitem__)
        low, high = (100 * bound for bound in self.gain_interval)
        gain = f"{METRIC} {100 * self.plain:.2f} -> {100 * self.scores[best]:.2f} %, gain {low:+.2f} to {high:+.2f}"
        return f"weight {self.weight:g} ({'' if self.weight else f'{best:g} does not certainly help: '}{gain})"


def choose_weight(
    embeddings: Array,
    table: Table,
    method: LocalReranking,
    weights: Sequence[float] = WEIGHTS,
    resampling: Resampling = DEFAULT_RESAMPLING,
) -> WeightChoice:
    """Choose the weight of the matching patches by mAP@R of validation classes.

    It is the weight with the highest mAP@R, or 0 if the confidence interval of its gain over ranking by similarity
    alone, from resampled classes, includes 0. Matching patches are found once for all weights.

    Args:
        embeddings: float [n, dim].
        table: n rows, with labels; of classes other than those that will be searched for.
        method: with the local features of the images; its own weight does not matter.
        weights: the candidates, each above 0.
        resampling: of the classes.

    Raises:
        InputError: as :func:`~vicinal.evaluation.evaluate` and :func:`~vicinal.evaluation.paired_differences`, or there
            are no weights, or one is not above 0.
    """
    if not len(weights) or min(weights) <= 0:
        raise InputError(f"weights are {list(weights)}; give one or more above 0")
    plain, candidates = evaluate(embeddings, table, recall_at=[1]), {each: method.with_weight(each) for each in weights}
    found = {
        weight: evaluate(embeddings, table, recall_at=[1], rerank=candidate) for weight, candidate in candidates.items()
    }
    scores = {weight: each.metrics[METRIC] for weight, each in found.items()}
    best = max(scores, key=scores.__getitem__)
    gain = paired_differences(plain, found[best], table, resampling).loc[METRIC]
    interval = (float(gain["difference_low"]), float(gain["difference_high"]))
    return WeightChoice(best if interval[0] > 0 else 0.0, plain.metrics[METRIC], scores, interval)
