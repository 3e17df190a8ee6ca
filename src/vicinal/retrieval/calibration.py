"""The calibration of a search's best score: a threshold for "match or none", and the probability of a match."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from vicinal.utils.arguments import is_integer, is_number
from vicinal.utils.arrays import Booleans, Doubles
from vicinal.utils.errors import InputError, one_line, prefixed_errors, unreadable
from vicinal.utils.files import check_regular_file, write_bytes

FORMAT, VERSION = "vicinal-calibration", 2
MAX_KNOTS = 10_000  # of the curve of probabilities, so that it fits into the config of an index
MAX_BYTES = 2**23
LOWEST_SIMILARITY = -1.0  # of the runner-up, where there is one class only
ScoreKind = Literal["similarity", "margin"]
SCORE_KINDS: tuple[ScoreKind, ...] = ("similarity", "margin")
Pooling = Literal["best", "mean", "centroid"]
POOLINGS: tuple[Pooling, ...] = ("best", "mean", "centroid")
Interval = tuple[float, float]
_NUMBERS = {
    "threshold": (-2.0, 2.0 + 1e-6),
    "false_accept_rate": (0.0, 1.0),
    "held_out_false_accept_rate": (0.0, 1.0),
    "false_accept_rate_bound": (0.0, 1.0),
    "false_reject_rate": (0.0, 1.0),
    "unknown_fraction": (0.0, 1.0),
    "confidence_level": (0.0, 1.0),
}
_MATCHES = {"best": "match", "mean": "class by its two best images", "centroid": "class by its centroid"}
_COUNTS = ("num_queries", "num_classes", "num_gallery")
_INTERVALS = {name: _NUMBERS[name.removesuffix("_interval")] for name in (
    "threshold_interval", "held_out_false_accept_rate_interval", "false_reject_rate_interval"
)}  # fmt: skip


@dataclass(frozen=True)
class Calibration:
    """A threshold on the score of a search's best match, and the probability that the match is right.

    :func:`vicinal.evaluation.calibrate` makes one. It holds for embeddings of one model, for queries like those that it
    was made with, and for galleries of about `num_gallery` images: in a larger gallery, the best match of an unknown
    class is more similar, and more such queries are accepted.

    Attributes:
        score: the score that the threshold is for: the cosine `similarity` of the best match; or the `margin` by which
            it is more similar than the best image of any other class.
        threshold: a best match with this score or a higher one is accepted.
        threshold_interval: confidence interval of the threshold, from resampled classes.
        false_accept_rate: the fraction of queries of unknown classes whose best match may be accepted.
        held_out_false_accept_rate: the fraction that was accepted by thresholds that were chosen without the query's
            class, among queries and in the gallery.
        held_out_false_accept_rate_interval: its confidence interval.
        false_accept_rate_bound: the rate for other classes of the same kind is not above this, with the confidence of
            `confidence_level`.
        false_reject_rate: the fraction of queries of known classes without a right and accepted best match: FNIR at the
            threshold.
        false_reject_rate_interval: its confidence interval.
        scores: ascending scores between which the probability is interpolated; outside it is that of the nearest.
        probabilities: at these scores, that the best match is right, where a fraction `unknown_fraction` of the queries
            is of unknown classes.
        unknown_fraction: see `probabilities`.
        confidence_level: of the intervals.
        num_queries: the number of queries.
        num_classes: the number of their classes.
        num_gallery: the number of gallery images.
        fingerprint: identifies the model and the steps after it; None if it is unknown.
        pooling: how the photos of a class are pooled before they are compared, see
            :func:`~vicinal.retrieval.class_similarities`; with another than `best`, it is about identities
            (:func:`~vicinal.retrieval.identify`) and no longer about single matches.
        cluster_threshold: the mean cosine similarity at which clusters of photos are merged so that they agree best
            with the classes; None where no class has two images.

    Raises:
        InputError: a value is invalid.
    """

    score: ScoreKind
    threshold: float
    threshold_interval: Interval
    false_accept_rate: float
    held_out_false_accept_rate: float
    held_out_false_accept_rate_interval: Interval
    false_accept_rate_bound: float
    false_reject_rate: float
    false_reject_rate_interval: Interval
    scores: tuple[float, ...]
    probabilities: tuple[float, ...]
    unknown_fraction: float
    confidence_level: float
    num_queries: int
    num_classes: int
    num_gallery: int
    fingerprint: str | None = None
    pooling: Pooling = "best"
    cluster_threshold: float | None = None

    def __post_init__(self) -> None:
        if self.score not in SCORE_KINDS:
            raise InputError(f"score = {self.score!r} is unknown; use similarity or margin")
        if self.pooling not in POOLINGS:
            raise InputError(f"pooling = {one_line(repr(self.pooling), 80)} is unknown; use {', '.join(POOLINGS)}")
        if self.cluster_threshold is not None:
            _check_numbers("cluster_threshold", [self.cluster_threshold], (-2.0, 2.0))
        for name, limits in _NUMBERS.items():
            _check_numbers(name, [getattr(self, name)], limits)
        for name, limits in _INTERVALS.items():
            _check_numbers(name, getattr(self, name), limits, length=2)
        for name in _COUNTS:
            if not (is_integer(getattr(self, name)) and getattr(self, name) >= 0):
                raise InputError(f"{name} = {getattr(self, name)!r} must be a whole number")
        _check_numbers("scores", self.scores, (-2.0, 2.0 + 1e-6), length=None)
        _check_numbers("probabilities", self.probabilities, (0.0, 1.0), length=len(self.scores))
        if len(self.scores) > MAX_KNOTS:
            raise InputError(f"there are {len(self.scores):,} scores; at most {MAX_KNOTS:,} are allowed")
        if not self.scores or (np.diff(self.scores) <= 0).any() or (np.diff(self.probabilities) < 0).any():
            raise InputError("scores must ascend, and probabilities must not descend; there must be at least one")
        if not isinstance(self.fingerprint, str | None):
            raise InputError("fingerprint must be text or null")

    def probability(self, scores: npt.ArrayLike) -> Doubles:
        """The probability that the best match of a query is right, for best matches of these scores, float64.

        Example:
            >>> example_calibration().probability([0.0, 0.6, 1.0])
            array([0. , 0.5, 1. ])
        """
        return np.interp(np.asarray(scores, np.float64), self.scores, self.probabilities)

    def accepts(self, scores: npt.ArrayLike) -> Booleans:
        """Whether best matches of these scores are accepted.

        Example:
            >>> example_calibration().accepts([0.69, 0.7])
            array([False,  True])
        """
        return np.asarray(scores, np.float64) >= self.threshold

    def check_model(self, fingerprint: str | None) -> None:
        """Refuse embeddings of another model, whose scores mean something else; None is an unknown model.

        Raises:
            InputError: both models are known and differ.
        """
        if None not in (self.fingerprint, fingerprint) and self.fingerprint != fingerprint:
            raise InputError(
                f"the calibration is for embeddings of the model {one_line(str(self.fingerprint), 80)}, not of "
                f"{one_line(str(fingerprint), 80)}; calibrate with that model: vicinal calibrate"
            )

    def describe(self) -> dict[str, Any]:
        """All values, ready for JSON, without the curve of probabilities."""
        return {name: value for name, value in asdict(self).items() if name not in ("scores", "probabilities")}

    def to_dict(self) -> dict[str, Any]:
        """Return all values with format and version, ready for JSON."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, values: object) -> Calibration:
        """Read what :meth:`to_dict` returned.

        Raises:
            InputError: it is something else, of a later version, or a value is missing, unknown or invalid.
        """
        if not isinstance(values, Mapping) or values.get("format") != FORMAT:
            raise InputError(f"it is not a calibration: its format is not {FORMAT!r}")
        if values.get("version") != VERSION:
            raise InputError(f"it has version {one_line(str(values.get('version')), 80)}; this Vicinal reads {VERSION}")
        names = {field.name for field in fields(cls)}
        given: dict[str, Any] = {name: value for name, value in values.items() if name not in ("format", "version")}
        if given.keys() != names:
            raise InputError(f"{one_line(str(min(map(str, given.keys() ^ names))), 80)} is missing or unknown")
        for name, value in given.items():
            given[name] = tuple(value) if isinstance(value, list) else value
        return cls(**given)

    def save(self, path: str | Path) -> None:
        """Write it to a JSON file, atomically.

        Raises:
            OSError: the file cannot be written.
        """
        write_bytes(path, (json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n").encode())

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read the file of a calibration.

        Raises:
            InputError: it cannot be read, or holds something else.
        """
        check_regular_file(path)
        try:
            with Path(path).open("rb") as file:
                content = file.read(MAX_BYTES + 1)
            values = json.loads(content) if len(content) <= MAX_BYTES else None
        except OSError as error:
            raise unreadable(path, error) from None
        except (ValueError, RecursionError):
            values = None
        with prefixed_errors(path):
            return cls.from_dict(values)

    def __str__(self) -> str:
        level = f"{100 * self.confidence_level:g} %"
        lines = [
            f"accept a best {_MATCHES[self.pooling]} of {self.score} {self.threshold:.4f} or higher "
            f"({level} interval {self.threshold_interval[0]:.4f} to {self.threshold_interval[1]:.4f})",
            f"false accepts, of queries of unknown classes: {_percent(self.false_accept_rate)} asked for, "
            f"{_percent(self.held_out_false_accept_rate)} {_percents(self.held_out_false_accept_rate_interval)} on "
            "classes held out",
            f"of other classes like these, with {level} confidence: at most {_percent(self.false_accept_rate_bound)}",
            f"known classes not found or not accepted: {_percent(self.false_reject_rate)} "
            f"{_percents(self.false_reject_rate_interval)}",
            f"from {self.num_queries:,} queries of {self.num_classes:,} classes, {self.num_gallery:,} gallery images",
        ]
        if self.cluster_threshold is not None:
            lines.append(f"photos of one new individual: mean similarity {self.cluster_threshold:.4f} or higher")
        return "\n".join(lines)


def example_calibration() -> Calibration:
    """A small calibration for examples and tests: the probability rises from 0 at 0.5 to 1 at 0.7, the threshold."""
    return Calibration(
        score="similarity", threshold=0.7, threshold_interval=(0.65, 0.75), false_accept_rate=0.01,
        held_out_false_accept_rate=0.02, held_out_false_accept_rate_interval=(0.0, 0.05), false_accept_rate_bound=0.15,
        false_reject_rate=0.1, false_reject_rate_interval=(0.05, 0.2), scores=(0.5, 0.7), probabilities=(0.0, 1.0),
        unknown_fraction=0.5, confidence_level=0.95, num_queries=100, num_classes=20, num_gallery=100,
        cluster_threshold=0.6,
    )  # fmt: skip


def _check_numbers(name: str, values: object, limits: Interval, length: int | None = 1) -> None:
    if not isinstance(values, Sequence) or isinstance(values, str) or len(values) != (length or len(values)):
        raise InputError(f"{name} must be {length or 'a list of'} numbers")
    for value in values:
        if not (is_number(value) and limits[0] <= value <= limits[1]):
            raise InputError(f"{name} = {one_line(repr(value), 80)} must be a number from {limits[0]:g} to "
                             f"{limits[1]:g}")  # fmt: skip


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def _percents(interval: Interval) -> str:
    return f"[{100 * interval[0]:.2f}, {100 * interval[1]:.2f}]"
