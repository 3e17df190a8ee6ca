"""What `vicinal evaluate` and `vicinal report` measure, and by which protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Protocol = Literal["standard", "roxford", "rparis", "vehicle_id", "landmarks_v2", "met"]

REVISITED: tuple[Protocol, ...] = ("roxford", "rparis")
VEHICLE_ID: Protocol = "vehicle_id"
BENCHMARK_PROTOCOLS: dict[str, Protocol] = {
    **{name: name for name in REVISITED},
    "roxford_1m": "roxford",
    "rparis_1m": "rparis",
    **dict.fromkeys(("landmarks_v2", "landmarks_v2_full"), "landmarks_v2"),
    **dict.fromkeys(("met", "met_mini"), "met"),
    **dict.fromkeys(("vehicle_id", "vehicle_id_medium", "vehicle_id_small"), VEHICLE_ID),
}


@dataclass(frozen=True)
class EvaluationSettings:
    """What is measured, and by which protocol.

    Args:
        recall_at: the k of each recall@k; None: 1, 2, 4 and 8, as far as there are images.
        metrics: names of further metrics: precision@K, mAP@K, positives_recall@K (the fraction of the positives among
            the first K), MRR.
        hierarchy: score the coarse labels of the table too.
        clusters: compare k-means clusters with the classes too: NMI, AMI and F1.
        protocol: standard, roxford, rparis, vehicle_id, landmarks_v2 or met; None: that of the benchmark the source
            names, else standard.
        root: folder of the ground truth of roxford and rparis.
        group_by: a column of the table; the metrics of each group of queries are given too.
        intervals: what is resampled for confidence intervals, classes or queries; None: there are no intervals.
        confidence_level: of the intervals, between 0 and 1.
        num_resamples: number of bootstrap samples, and of permutations for p-values.
        seed: seed of everything random.

    Raises:
        InputError: a metric does not exist, or a setting is impossible.
    """

    recall_at: Sequence[int] | None = None
    metrics: Sequence[str] = ()
    hierarchy: bool = False
    clusters: bool = False
    protocol: Protocol | None = None
    root: str | None = None
    group_by: str | None = None
    intervals: Literal["classes", "queries"] | None = None
    confidence_level: float = 0.95
    num_resamples: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        from vicinal.evaluation.metrics import metric_by_name
        from vicinal.evaluation.resampling import Resampling

        for name in self.metrics:
            metric_by_name(name)
        Resampling("classes", self.confidence_level, self.num_resamples, self.seed)

    def protocol_of(self, source: str) -> Protocol:
        """The protocol of a source: the one that was given, or that of the benchmark it names.

        Example:
            >>> EvaluationSettings().protocol_of("vehicle_id_small"), EvaluationSettings().protocol_of("run")
            ('vehicle_id', 'standard')
        """
        return self.protocol or BENCHMARK_PROTOCOLS.get(source, "standard")
