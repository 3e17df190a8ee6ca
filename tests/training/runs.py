"""What tests of training share: trainers of recipes, what runs leave behind, and validation by a script."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from vicinal.training import Recipe, Trainer
from vicinal.training.training_data import load_training_table
from vicinal.utils.run_folder import RunFolder


def trainer(settings: list[str], out: Path, *more: str) -> Trainer:
    recipe = Recipe.load(overrides=[*settings, *more])
    return Trainer(recipe, load_training_table(recipe.settings), RunFolder(out))


def weights(run: RunFolder) -> bytes:
    return (run.model / "model.safetensors").read_bytes()


def copied(parameters: list[Tensor]) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in parameters]


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
