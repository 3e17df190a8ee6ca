"""Trainers of recipes, and what runs leave behind."""

from __future__ import annotations

from pathlib import Path

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
