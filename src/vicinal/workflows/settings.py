"""The options of the verbs of the command. Importing this module loads nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from vicinal.utils.arguments import check_fraction, check_nonnegative, check_positive_integer
from vicinal.utils.errors import InputError

MAX_SEED = 2**32 - 1  # of scikit-learn
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
Sampler = Literal["tpe", "random", "sobol"]


@dataclass(frozen=True)
class LocalSettings:
    """How local features are computed.

    Args:
        size: side of the square from the center of an image that is divided into patches, in pixels; a larger one gives
            more patches. None takes that of the model.
        layer: the feature map of the model whose positions are the patches: the last, or the previous one, which has
            four times as many in a convolutional network.
        dim: dimensions of a patch after whitening, one byte each; 0 takes the feature map as it is.
    """

    size: int | None = None
    layer: Literal["previous", "last"] = "previous"
    dim: int = 64

    def __post_init__(self) -> None:
        check_nonnegative(self, dim=self.dim)
        if self.size is not None:
            check_positive_integer(self, size=self.size)


@dataclass(frozen=True)
class CalibrationSettings:
    """The options of a calibration.

    Args:
        false_accept_rate: the fraction of queries of unknown classes that may be accepted.
        threshold_by: rate: these classes have that rate; bound: other classes have it too, with the confidence of
            confidence_level, which needs many classes.
        score: similarity of the best match, or margin to the best image of any other class.
        identity_pooling: of vicinal identify, how the photos of an identity are pooled: best, its most similar photo;
            mean, of its two most similar ones; centroid, the mean of all. With mean or centroid, vicinal search does
            not decide.
        unknown_fraction: the fraction of queries of unknown classes in use, by which probabilities are weighted.
        confidence_level: of intervals and bounds, between 0 and 1.
        num_resamples: number of bootstrap samples.
        seed: seed of everything random.

    Raises:
        InputError: a setting is invalid.
    """

    false_accept_rate: float = 0.01
    threshold_by: Literal["rate", "bound"] = "rate"
    score: Literal["similarity", "margin"] = "similarity"
    identity_pooling: Literal["best", "mean", "centroid"] = "best"
    unknown_fraction: float = 0.5
    confidence_level: float = 0.95
    num_resamples: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        check_fraction(self, unknown_fraction=self.unknown_fraction)
        for name in ("false_accept_rate", "confidence_level"):
            if not 0 < getattr(self, name) < 1:
                raise InputError(f"{name} = {getattr(self, name)} is invalid; use one between 0 and 1")


@dataclass(frozen=True)
class CleanSettings:
    """The options of finding errors in a dataset.

    Args:
        num_neighbors: number of neighbors of each image, by which label errors and outliers are found.
        min_similarity: the minimum cosine similarity of near duplicates. None takes 0.95 where pixels are compared too,
            else 0.995.
        min_pixel_similarity: the minimum correlation of the pixels of near duplicates.
        min_outlier_factor: the minimum local outlier factor of outliers.
        num_clusters: number of clusters of k-means. None takes HDBSCAN, which needs none.
        min_cluster_size: the minimum number of images of a cluster of HDBSCAN.
        seed: seed of k-means.

    Raises:
        InputError: a value is invalid.
    """

    num_neighbors: int = 10
    min_similarity: float | None = None
    min_pixel_similarity: float = 0.85
    min_outlier_factor: float = 3.0
    num_clusters: int | None = None
    min_cluster_size: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        check_positive_integer(self, num_neighbors=self.num_neighbors, min_cluster_size=self.min_cluster_size)
        if self.num_clusters is not None:
            check_positive_integer(self, num_clusters=self.num_clusters)
        check_nonnegative(self, min_outlier_factor=self.min_outlier_factor)
        for name in ("min_similarity", "min_pixel_similarity"):
            value = getattr(self, name)
            if value is not None and not -1 <= value <= 1:
                raise InputError(f"{name} = {value} must be from -1 to 1")
        if not 0 <= self.seed <= MAX_SEED:
            raise InputError(f"seed = {self.seed} must be from 0 to {MAX_SEED}")


@dataclass(frozen=True)
class EvaluationSettings:
    """The metrics and their protocol.

    Args:
        recall_at: the k of each recall@k; None: 1, 2, 4 and 8, as far as there are images.
        metrics: names of further metrics: precision@K, mAP@K, positives_recall@K (the fraction of the positives among
            the first K), MRR.
        hierarchy: score the coarse labels of the table too.
        clusters: compare k-means clusters with the classes too: NMI, AMI and F1.
        open_set: enroll a part of the classes, and identify the other images among these: closed_set_accuracy,
            identification_rate, known_as_new, unknown_rate, and the agreement of the clusters of new ones, new_ARI and
            new_F1. Thresholds are those of the model's calibration, see vicinal calibrate.
        known_fraction: the fraction of the classes that open_set enrolls, with half of their images; a table with
            is_query and is_gallery says it itself.
        calibration: of open_set, the .json file that vicinal calibrate wrote; None: that in the folder of the model or
            in the index.
        protocol: standard, roxford, rparis, vehicle_id, landmarks_v2 or met; None: that of the benchmark the source
            names, else standard.
        root: folder of the ground truth of roxford and rparis.
        group_by: a column of the table; the metrics of each group of queries are given too.
        intervals: the units that are resampled for confidence intervals, classes or queries; None: without intervals.
        confidence_level: of the intervals, between 0 and 1.
        num_resamples: number of bootstrap samples, and of permutations for p-values.
        seed: seed of everything random.

    Raises:
        InputError: a metric does not exist, or a setting is invalid.
    """

    recall_at: Sequence[int] | None = None
    metrics: Sequence[str] = ()
    hierarchy: bool = False
    clusters: bool = False
    open_set: bool = False
    known_fraction: float = 0.5
    calibration: str | None = None
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
        if not 0 < self.known_fraction < 1:
            raise InputError(f"known_fraction = {self.known_fraction} is invalid; use one between 0 and 1")
        if self.calibration is not None and not self.open_set:
            raise InputError("calibration is for open_set; give --open_set too")
        Resampling("classes", self.confidence_level, self.num_resamples, self.seed)

    def protocol_of(self, source: str) -> Protocol:
        """The protocol of a source: the one that was given, or that of the benchmark it names.

        Example:
            >>> EvaluationSettings().protocol_of("vehicle_id_small"), EvaluationSettings().protocol_of("run")
            ('vehicle_id', 'standard')
        """
        return self.protocol or BENCHMARK_PROTOCOLS.get(source, "standard")


@dataclass(frozen=True)
class TuneSettings:
    """The options of a search.

    Args:
        trials: number of trials, those of earlier commands on this study included.
        sampler: how settings are proposed: "tpe", the tree-structured Parzen estimator, learns from the trials before;
            "random" does not; "sobol" does not either, and covers numbers more evenly than "random" with few trials.
        prune: "median" ends trials early whose validation scores are worse than the median at the same epoch; with
            several folds, the first one decides.
        held_out: the classes that validate: "half", the second half of the training classes in order, while the first
            half trains; "val", the split val of the data; or a number of folds, each of which validates once.
        seeds: number of seeds with which the best trials are trained; their mean decides which one is best.
        top: number of the best trials that are trained with further seeds.
        replay: then train once on all training classes, with the best settings, until the epoch that was the best one,
            and evaluate that model once on the test split.
        recall_at: with replay, the k of each recall@k; None: 1, 2, 4 and 8, as far as there are images.
        metrics: with replay, names of further metrics: precision@K, mAP@K, positives_recall@K, MRR.
        hierarchy: with replay, score the coarse labels of the table too.
        clusters: with replay, compare k-means clusters with the classes too: NMI, AMI and F1.
        keep_weights: keep the weights of all trials.
        jobs: number of runs at a time, each on a GPU of its own if there are several.
    """

    trials: int = 20
    sampler: Sampler = "tpe"
    prune: Literal["none", "median"] = "none"
    held_out: str = "half"
    seeds: int = 1
    top: int = 3
    replay: bool = False
    recall_at: Sequence[int] | None = None
    metrics: Sequence[str] = ()
    hierarchy: bool = False
    clusters: bool = False
    keep_weights: bool = False
    jobs: int = 1

    def __post_init__(self) -> None:
        check_positive_integer(self, trials=self.trials, seeds=self.seeds, top=self.top, jobs=self.jobs)
        folds = self.held_out.isdecimal() and int(self.held_out) >= 2
        if not folds and self.held_out not in ("half", "val"):
            raise InputError(f"held_out = {self.held_out} must be half, val, or a number of folds from 2 up")


@dataclass(frozen=True)
class SweepSettings:
    """The options of a grid.

    Args:
        seeds: number of seeds with which each cell is trained.
        metric: the metric of the picture; None: that of the recipe's validation.
        recall_at: the k of each recall@k; None: 1, 2, 4 and 8, as far as there are images.
        metrics: names of further metrics: precision@K, mAP@K, positives_recall@K, MRR.
        hierarchy: score the coarse labels of the table too.
        clusters: compare k-means clusters with the classes too: NMI, AMI and F1.
        jobs: number of runs at a time, each on a GPU of its own if there are several.
    """

    seeds: int = 1
    metric: str | None = None
    recall_at: Sequence[int] | None = None
    metrics: Sequence[str] = ()
    hierarchy: bool = False
    clusters: bool = False
    jobs: int = 1

    def __post_init__(self) -> None:
        check_positive_integer(self, seeds=self.seeds, jobs=self.jobs)
