"""The progress of a run, and where it ends: after so many epochs or steps, whichever comes first."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass
class Progress:
    """Steps, epochs and the best validation score of a run.

    Attributes:
        step: number of optimizer steps.
        epoch: number of finished epochs.
        steps_in_epoch: number of steps in the current epoch.
        zero_shot: validation score of the pretrained network's own embeddings; -inf without pretrained weights.
        best: best validation score; -inf before the first.
        best_epoch: number of finished epochs at the best score.
        evaluations_since_best: number of evaluations since the best score.
        score: score of the last evaluation; NaN before the first.
        loss_sum: sum of the losses of the steps of the current epoch.
        loss: mean loss of the steps of the last finished epoch; NaN before.
        seconds: that the run has taken, also before it was resumed; NaN if that is unknown.
    """

    step: int = 0
    epoch: int = 0
    steps_in_epoch: int = 0
    zero_shot: float = -math.inf
    best: float = -math.inf
    best_epoch: int = 0
    evaluations_since_best: int = 0
    score: float = math.nan
    loss_sum: float = 0.0
    loss: float = math.nan
    seconds: float = 0.0

    def count_step(self) -> None:
        """Count a step of the optimizer."""
        self.step += 1
        self.steps_in_epoch += 1

    def count_epoch(self) -> None:
        """Count a finished epoch."""
        self.epoch += 1
        self.loss = self.loss_sum / max(1, self.steps_in_epoch)
        self.steps_in_epoch, self.loss_sum = 0, 0.0

    def count_evaluation(self, score: float) -> bool:
        """Count an evaluation, and return whether its score is the best so far."""
        self.evaluations_since_best += 1
        self.score = score
        if not score > self.best:
            return False
        self.best, self.best_epoch, self.evaluations_since_best = score, self.epoch, 0
        return True


MIN_EPOCHS, MIN_STEPS = 4, 60
"""The length of a run that its recipe leaves to the data: so many epochs, or as many as take so many steps."""


def fit_epochs(steps_per_epoch: int) -> int:
    """The number of epochs of a run whose recipe limits neither epochs nor steps.

    Few images are seen more often: an epoch of theirs has few steps.

    Example:
        >>> fit_epochs(steps_per_epoch=400), fit_epochs(steps_per_epoch=3)
        (4, 20)
    """
    return max(MIN_EPOCHS, math.ceil(MIN_STEPS / steps_per_epoch))


@dataclass(frozen=True)
class RunLength:
    """The end of a run, by epochs, by steps, or by whichever comes first.

    Args:
        epochs: number of epochs; None: no limit.
        max_steps: number of steps of the optimizer; None: no limit. At least one of the two is given.
        stop_epoch: number of epochs after which the run ends although the two, and thus its schedule, go on; None: it
            does not.

    Example:
        >>> length = RunLength(epochs=None, max_steps=250)
        >>> progress = Progress(step=200, epoch=2)  # two epochs of 100 steps
        >>> length.is_reached(progress), length.steps_of_epoch(progress, steps=100), length.num_steps(progress, 100)
        (False, 50, 250)
        >>> length.position(progress)
        'epoch 2, step 200/250'
        >>> RunLength(epochs=30, max_steps=None, stop_epoch=20).num_steps(Progress(), 100)  # as the schedule sees it
        3000
    """

    epochs: int | None
    max_steps: int | None
    stop_epoch: int | None = None

    @property
    def last_epoch(self) -> int | None:
        """The number of epochs after which the run ends, unless steps end it before; None: no limit."""
        return min((each for each in (self.epochs, self.stop_epoch) if each is not None), default=None)

    def is_reached(self, progress: Progress) -> bool:
        """Whether the run is over; never within an epoch, which must be finished first, even if it was cut short."""
        epochs = math.inf if self.last_epoch is None else self.last_epoch
        steps = math.inf if self.max_steps is None else self.max_steps
        return progress.steps_in_epoch == 0 and (progress.epoch >= epochs or progress.step >= steps)

    def steps_of_epoch(self, progress: Progress, steps: int) -> int:
        """The number of steps taken in the current epoch of `steps` steps: fewer if the run ends in it."""
        return steps if self.max_steps is None else min(steps, self.max_steps - _steps_before(progress))

    def num_steps(self, progress: Progress, steps: int) -> int:
        """The number of steps of the whole run if this epoch and all after it have `steps` steps."""
        left = math.inf if self.epochs is None else (self.epochs - progress.epoch) * steps
        end = _steps_before(progress) + left
        return int(end if self.max_steps is None else min(end, self.max_steps))

    def fraction(self, progress: Progress) -> float:
        """The fraction of the run that is over, as far as epochs are finished."""
        of_epochs = 0.0 if self.last_epoch is None else progress.epoch / self.last_epoch
        return of_epochs if self.max_steps is None else max(of_epochs, progress.step / self.max_steps)

    def position(self, progress: Progress) -> str:
        """Where the run is, for messages."""
        epoch = f"epoch {progress.epoch}" if self.last_epoch is None else f"epoch {progress.epoch}/{self.last_epoch}"
        return epoch if self.max_steps is None else f"{epoch}, step {progress.step}/{self.max_steps}"


def _steps_before(progress: Progress) -> int:
    """The number of steps before the current epoch."""
    return progress.step - progress.steps_in_epoch
