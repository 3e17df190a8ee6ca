"""What `vicinal calibrate` is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vicinal.utils.arguments import check_fraction
from vicinal.utils.errors import InputError


@dataclass(frozen=True)
class CalibrationSettings:
    """What a calibration is asked for.

    Args:
        false_accept_rate: the fraction of queries of unknown classes that may be accepted.
        threshold_by: rate: these classes have that rate; bound: other classes have it too, with the confidence of
            confidence_level, which needs many classes.
        score: similarity of the best match, or margin to the best image of any other class.
        unknown_fraction: the fraction of queries of unknown classes in use, by which probabilities are weighted.
        confidence_level: of intervals and bounds, between 0 and 1.
        num_resamples: number of bootstrap samples.
        seed: seed of everything random.

    Raises:
        InputError: a setting is impossible.
    """

    false_accept_rate: float = 0.01
    threshold_by: Literal["rate", "bound"] = "rate"
    score: Literal["similarity", "margin"] = "similarity"
    unknown_fraction: float = 0.5
    confidence_level: float = 0.95
    num_resamples: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        check_fraction(self, unknown_fraction=self.unknown_fraction)
        for name in ("false_accept_rate", "confidence_level"):
            if not 0 < getattr(self, name) < 1:
                raise InputError(f"{name} = {getattr(self, name)} is impossible; use one between 0 and 1")
