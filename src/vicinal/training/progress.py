"""The progress of a run: steps, epochs and the best score so far."""

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
