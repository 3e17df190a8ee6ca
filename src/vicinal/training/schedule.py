"""Learning-rate schedules: a factor that depends on the progress of training and on nothing else.

A schedule has no state, so a resumed run cannot disagree with the run it continues.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from vicinal.utils.arguments import require, require_left_out


@dataclass(frozen=True)
class Schedule:
    """How the learning rate changes over a run.

    Args:
        name: "constant"; "step": multiplied by `decay` after every `every` epochs; "multistep": multiplied by `decay`
            after each number of epochs in `steps`; "cosine": falls to zero along half a cosine until the end of the
            run; "one_cycle": rises from 1/`div_factor` to 1 and falls to nearly zero until the end of the run, along
            half a cosine each, as `torch.optim.lr_scheduler.OneCycleLR` does.
        every: epochs between decays, for "step".
        steps: epochs after which the rate decays, for "multistep".
        decay: factor of one decay, for "step" and "multistep".
        warmup: epochs, possibly a fraction, of linear rise from zero at the start, with any schedule but "one_cycle".
        unit: whether `every`, `steps` and `warmup` count "epochs" or "steps" of the optimizer.
        pct_start: fraction of the run in which the rate rises, for "one_cycle".
        div_factor: the highest rate over that of the first step, for "one_cycle".
        final_div_factor: the rate of the first step over that of the last, for "one_cycle".
        momentum_range: for "one_cycle": lowest and highest momentum (sgd) or first beta (adam, adamw), instead of the
            optimizer's. It falls to the lowest while the rate rises, and rises again. [0.85, 0.95] is the default of
            OneCycleLR; null: the momentum is constant.

    Raises:
        InputError: a value is invalid, or belongs to another schedule.

    Example:
        >>> schedule = Schedule("multistep", steps=[2, 4], decay=0.1)
        >>> [round(schedule.factor(epoch, step=7 * epoch, num_steps=35), 3) for epoch in range(5)]
        [1.0, 1.0, 0.1, 0.1, 0.01]
    """

    name: Literal["constant", "step", "multistep", "cosine", "one_cycle"] = "cosine"
    every: int = 10
    steps: list[int] = field(default_factory=list)
    decay: float = 0.3
    warmup: float = 0.0
    unit: Literal["epochs", "steps"] = "epochs"
    pct_start: float = 0.3
    div_factor: float = 25.0
    final_div_factor: float = 1e4
    momentum_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        require(self.every >= 1, "schedule.every", self.every, f"at least 1 of the {self.unit}")
        require(0 < self.decay <= 1, "schedule.decay", self.decay, "in (0, 1]")
        require(0 <= self.warmup < math.inf, "schedule.warmup", self.warmup, f"0 or more {self.unit}")
        require(all(each >= 1 for each in self.steps), "schedule.steps", self.steps, f"positive numbers of {self.unit}")
        named = self.name != "multistep" or bool(self.steps)
        require(named, "schedule.steps", self.steps, f'the {self.unit} of decay when schedule.name is "multistep"')
        self._check_one_cycle()
        self._check_unused()

    def _check_one_cycle(self) -> None:
        require(0 <= self.pct_start <= 1, "schedule.pct_start", self.pct_start, "from 0 to 1")
        for name in ("div_factor", "final_div_factor"):
            require(1 <= getattr(self, name) < math.inf, f"schedule.{name}", getattr(self, name), "1 or more")
        low, high = self.momentum_range or (0.0, 0.0)
        ordered = 0 <= low <= high < 1
        require(ordered, "schedule.momentum_range", self.momentum_range, "two numbers in [0, 1), the lower one first")

    def _check_unused(self) -> None:
        owners: dict[str, tuple[str, ...]] = {
            "every": ("step",),
            "steps": ("multistep",),
            "decay": ("step", "multistep"),
            "warmup": ("constant", "step", "multistep", "cosine"),
            **dict.fromkeys(("pct_start", "div_factor", "final_div_factor", "momentum_range"), ("one_cycle",)),
        }
        for setting, names in owners.items():
            if self.name not in names:
                require_left_out(self, "schedule.", (setting,), f"schedule.name is {' or '.join(names)}")

    def factor(self, epoch: float, step: int, num_steps: int) -> float:
        """The factor of the learning rate for one step.

        Args:
            epoch: number of epochs before this step, whole and part.
            step: number of steps before this step.
            num_steps: number of steps of the whole run.
        """
        if self.name == "one_cycle":
            start = 1 / self.div_factor
            return self._one_cycle(step, num_steps, start, 1.0, start / self.final_div_factor)
        elapsed = epoch if self.unit == "epochs" else step
        return self._warmup(elapsed) * self._decay(elapsed, step / num_steps)

    def momentum(self, step: int, num_steps: int) -> float | None:
        """The momentum or first beta for one step; None: that of the optimizer. Arguments as for :meth:`factor`."""
        if self.momentum_range is None:
            return None
        low, high = self.momentum_range
        return self._one_cycle(step, num_steps, high, low, high)

    def _warmup(self, elapsed: float) -> float:
        return min(1.0, elapsed / self.warmup) if self.warmup else 1.0

    def _decay(self, elapsed: float, progress: float) -> float:
        if self.name == "step":
            return self.decay ** int(elapsed // self.every)
        if self.name == "multistep":
            return self.decay ** sum(elapsed >= step for step in self.steps)
        if self.name == "cosine":
            return _half_cosine(1.0, 0.0, min(1.0, progress))
        return 1.0

    def _one_cycle(self, step: int, num_steps: int, start: float, middle: float, end: float) -> float:
        """A value that goes from `start` at the first step over `middle` to `end` at the last one."""
        peak, last = self.pct_start * num_steps - 1, num_steps - 1
        if step <= peak:
            return _half_cosine(start, middle, step / peak) if peak else middle
        return _half_cosine(middle, end, (step - peak) / (last - peak))


def _half_cosine(start: float, end: float, fraction: float) -> float:
    return end + (start - end) / 2 * (1 + math.cos(math.pi * fraction))
