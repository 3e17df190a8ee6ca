"""What tests of training share: trainers of recipes, what runs leave behind, and validation by a script."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from vicinal.training import Recipe, Trainer
from vicinal.training.base_trainer import BaseTrainer
from vicinal.training.checkpoint import load_checkpoint
from vicinal.training.training_data import load_training_table
from vicinal.utils.errors import InterruptedRunError
from vicinal.utils.run_folder import RunFolder


def trainer(settings: list[str], out: Path, *more: str) -> Trainer:
    recipe = Recipe.load(overrides=[*settings, *more])
    return Trainer(recipe, load_training_table(recipe.settings), RunFolder(out))


def interrupt_in_step(trainer: BaseTrainer, step: int, number: signal.Signals = signal.SIGINT) -> None:
    """Let a signal come at the beginning of a step, counted from 1; training stops after it."""
    train_step = trainer.train_step

    def interrupted_step(*arguments: Any, **more: Any) -> None:
        if trainer.progress.step == step - 1:
            os.kill(os.getpid(), number)
        train_step(*arguments, **more)

    trainer.train_step = interrupted_step  # type: ignore[method-assign]


def interrupted(settings: list[str], out: Path, step: int, number: signal.Signals = signal.SIGINT) -> RunFolder:
    """A run that a signal has stopped in a step, counted from 1."""
    one = trainer(settings, out)
    interrupt_in_step(one, step, number)
    with pytest.raises(InterruptedRunError, match=rf"stopped after step {step} and saved .*: vicinal train --out"):
        one.fit()
    assert load_checkpoint(one.run.last)["progress"]["step"] == step
    return one.run


def assert_same_run(run: RunFolder, straight: RunFolder) -> None:
    """Two finished runs have the same weights, state, class centers, metrics and log, bit for bit."""
    assert weights(run) == weights(straight)
    states = [load_checkpoint(each.last)["module"] for each in (run, straight)]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items() if isinstance(value, Tensor))
    assert pd.read_csv(run.metrics).equals(pd.read_csv(straight.metrics))
    logs = [pd.read_csv(each.log).drop(columns="images/s") for each in (run, straight)]
    assert logs[0].equals(logs[1])
    if straight.centers.exists():
        assert run.centers.read_bytes() == straight.centers.read_bytes()


def weights(run: RunFolder) -> bytes:
    return (run.model / "model.safetensors").read_bytes()


def copied(parameters: list[Tensor]) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in parameters]


def gradients(one: Trainer) -> list[Tensor]:
    """The gradient of the first step, as an update of plain gradient descent."""
    parameters = [parameter for group in one.parameter_groups.values() for parameter in group]
    before = [parameter.detach().clone() for parameter in parameters]
    one.start()
    with one.watching():
        one._on_epoch_start()
        one.train_step(next(one._batches_of_steps(one._plan())), epoch=0.0, num_steps=2)
    one.log.close()
    return [a - b.detach() for a, b in zip(before, parameters, strict=True)]


def scripted_validation(monkeypatch: pytest.MonkeyPatch, scores: Iterator[float]) -> None:
    """Let mAP@R on the validation split be so, whatever the model does."""
    from vicinal.training import trainer as module

    original = module.evaluate

    def scripted(vectors, table, **more):
        evaluation = original(vectors, table, **more)
        if "metrics" not in more:  # of training images
            return evaluation
        return replace(evaluation, metrics={**evaluation.metrics, "mAP@R": next(scores)})

    monkeypatch.setattr(module, "evaluate", scripted)


class Infinite(torch.autograd.Function):
    """The identity, with a gradient of infinity."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, upstream):
        return upstream * torch.inf
