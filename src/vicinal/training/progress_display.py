"""What a run says of its progress: a bar, and a line after every epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from vicinal.training.progress import Progress
from vicinal.training.recipes.run_length import RunLength
from vicinal.utils.console import duration, log, progress_bar

FIRST_STEPS = 20  # after so many steps of a process, the time that the run takes is said
MIN_SECONDS = 30  # of a run whose time is worth a line


class ProgressDisplay:
    """Shows on stderr how far a run is.

    Args:
        length: when the run ends.
        metric: the metric that decides which weights are best.
        progress: the progress with which this process starts.
    """

    def __init__(self, length: RunLength, metric: str, progress: Progress) -> None:
        self.length, self.metric = length, metric
        self.started_at, self.started_fraction = time.monotonic(), length.fraction(progress)
        self._num_steps, self._first_step_at, self._is_told = 0, math.nan, False

    @contextmanager
    def bar(self) -> Iterator[None]:
        """Show a bar in this context."""
        with progress_bar() as self._bar:
            self._task = self._bar.add_task("training", total=None, note="")
            yield

    def step(self, progress: Progress, loss: float, num_steps: int) -> None:
        """Show that a step of a run of `num_steps` steps has been taken, with its loss."""
        self._bar.update(self._task, completed=progress.step, total=num_steps, note=self._summary(progress, loss))
        self._num_steps += 1
        if self._num_steps == 1:  # which takes longer than others
            self._first_step_at = time.monotonic()
        elif self._num_steps == FIRST_STEPS and not self._is_told:
            self._tell_time(num_steps - progress.step)

    def epoch(self, progress: Progress) -> None:
        """Print the line of a finished epoch."""
        log(f"{self._summary(progress, progress.loss)}, {self._time_left(progress)}")
        self._is_told = True

    def start(self, progress: Progress, num_steps: int) -> None:
        """Start an epoch; say at the start of a run if its epochs, maybe a default, end it before `max_steps`."""
        if self._num_steps == 0:  # a first validation, or the pass that computes frozen features, is not repeated
            self.started_at = time.monotonic()
        epochs, max_steps = self.length.epochs, self.length.max_steps
        if progress.step == 0 and max_steps is not None and num_steps < max_steps:
            end = f"epochs = {epochs} ends the run at step {num_steps}, before max_steps = {max_steps}"
            log(f"{end}; epochs: null sets no such limit")

    def _tell_time(self, steps: int) -> None:
        """Say how long so many more steps take, before the first epoch is over."""
        seconds = steps * (time.monotonic() - self._first_step_at) / (FIRST_STEPS - 1)
        if seconds >= MIN_SECONDS:
            log(f"about {duration(seconds)} for {steps:,} more steps, and more for validation; it may end early")

    def _summary(self, progress: Progress, loss: float) -> str:
        text = f"{self.length.position(progress)}: loss {loss:.4f}"
        if math.isnan(progress.score):
            return text
        score = f"{progress.score:.4f}" if math.isfinite(progress.score) else "below the guardrails"
        best = f"best {progress.best:.4f} in epoch {progress.best_epoch}" if math.isfinite(progress.best) else "no best"
        return f"{text}, {self.metric} {score} ({best})"

    def _time_left(self, progress: Progress) -> str:
        """The time that the rest of the run takes if it goes on as in this process so far."""
        done = self.length.fraction(progress)
        speed = max(done - self.started_fraction, 1e-9) / (time.monotonic() - self.started_at)
        return f"{duration((1 - done) / speed)} left"
