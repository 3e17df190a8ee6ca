"""Learning-rate schedules: a factor that depends on the progress of training and on nothing else.

A schedule has no state, so a resumed run cannot disagree with the run it continues.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from vicinal.utils.errors import InputError


@dataclass(frozen=True)
class Schedule:
    """How the learning rate changes over the epochs.

    Args:
        name: "constant"; "step": multiplied by `decay` every `every` epochs; "multistep": multiplied by `decay` at each
            of the epochs in `steps`; "cosine": falls to zero along half a cosine.
        every: epochs between decays, for "step".
        steps: epochs after which the rate decays, for "multistep".
        decay: factor of one decay, for "step" and "multistep".
        warmup: epochs, possibly a fraction, of linear rise from zero at the start, with any schedule.

    Raises:
        InputError: a value is impossible.

    Example:
        >>> schedule = Schedule("multistep", steps=[2, 4], decay=0.1)
        >>> [round(schedule.factor(epoch, epochs=5), 3) for epoch in range(5)]
        [1.0, 1.0, 0.1, 0.1, 0.01]
    """

    name: Literal["constant", "step", "multistep", "cosine"] = "cosine"
    every: int = 10
    steps: list[int] = field(default_factory=list)
    decay: float = 0.3
    warmup: float = 0.0

    def __post_init__(self) -> None:
        if self.every < 1:
            raise InputError(f"schedule.every = {self.every} must be at least 1 epoch")
        if not 0 < self.decay <= 1:
            raise InputError(f"schedule.decay = {self.decay} must lie in (0, 1]")
        if not 0 <= self.warmup < math.inf:
            raise InputError(f"schedule.warmup = {self.warmup} must be 0 or more epochs")
        if self.name == "multistep" and not self.steps:
            raise InputError('schedule.steps = [] must name the epochs of decay when schedule.name is "multistep"')

    def factor(self, epoch: float, epochs: int) -> float:
        """Factor of the learning rate after `epoch` epochs, whole or part, of `epochs`."""
        return self._warmup(epoch) * self._decay(epoch, epochs)

    def _warmup(self, epoch: float) -> float:
        return min(1.0, epoch / self.warmup) if self.warmup else 1.0

    def _decay(self, epoch: float, epochs: int) -> float:
        if self.name == "step":
            return self.decay ** int(epoch // self.every)
        if self.name == "multistep":
            return self.decay ** sum(epoch >= step for step in self.steps)
        if self.name == "cosine":
            return 0.5 * (1 + math.cos(math.pi * min(1.0, epoch / epochs)))
        return 1.0
