"""The trials of a search for settings, as a page shows them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["complete", "ended early", "failed", "running"]


@dataclass(frozen=True)
class StudyTrial:
    """A trial of a search for settings.

    Args:
        number: of the trial, from 0.
        state: how it ended.
        values: its settings, by their keys in the recipe.
        score: the best validation score; None without one.
        epoch: number of epochs after which it was reached.
        seed_scores: the best score with each seed, if it was trained with several.
        reason: why it failed.
    """

    number: int
    state: State
    values: Mapping[str, Any] = field(default_factory=dict)
    score: float | None = None
    epoch: int | None = None
    seed_scores: tuple[float, ...] = ()
    reason: str = ""


def shown_value(value: Any) -> str:
    """A value of a setting, with four digits at most of a number.

    Example:
        >>> shown_value(0.000123456), shown_value([25, 50]), shown_value("sgd"), shown_value(None)
        ('0.0001235', '[25, 50]', 'sgd', 'null')
    """
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value)
