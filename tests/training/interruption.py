"""Runs that a signal interrupts in a certain step, as Ctrl-C does, and processes that die while they write a file."""

from __future__ import annotations

import os
import signal
from typing import Any

from vicinal.training.base_trainer import BaseTrainer


def interrupt_in_step(trainer: BaseTrainer, step: int, number: signal.Signals = signal.SIGINT) -> None:
    """Let a signal come at the beginning of a step, counted from 1; training stops after it."""
    train_step = trainer.train_step

    def interrupted_step(*arguments: Any, **more: Any) -> None:
        if trainer.progress.step == step - 1:
            os.kill(os.getpid(), number)
        train_step(*arguments, **more)

    trainer.train_step = interrupted_step  # type: ignore[method-assign]
