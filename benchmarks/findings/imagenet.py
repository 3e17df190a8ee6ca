"""Comparisons that start from EfficientNet-Lite0 with its weights of ImageNet (the extra `weights`)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from benchmarks.default_settings import prepare
from benchmarks.findings.question import FROM_IMAGENET
from vicinal import Embedder, Table, load_table, losses
from vicinal.losses import CenterBasedLoss
from vicinal.training import Recipe

CENTERS: Mapping[str, object] = {"centers": "class_means", "optimizer.lr_factors": {"loss": 10.0}}
"""Of losses with class centers: short runs are over before random ones have found their classes."""


class ImageNet:
    """A dataset, and the network that runs on it start from.

    Args:
        dataset: emoji, grocery_imagenet or nyala.
        root: folder of the archives.
        out: folder of the runs.
    """

    def __init__(self, dataset: str, root: str, out: Path) -> None:
        self.dataset, self.root, self.out = dataset, root, out / dataset

    @cached_property
    def _table(self) -> Path:
        return prepare(FROM_IMAGENET[self.dataset], Path(self.root), self.out)

    @property
    def words(self) -> list[str]:
        """The flags of the data."""
        return [f"--data.source={self._table}", f"--data.root={self.out}"]

    @cached_property
    def table(self) -> Table:
        """The images of the dataset."""
        return load_table(str(self._table), root=str(self.out))

    def settings_of(self, loss: object) -> Mapping[str, object]:
        """The settings that a loss of this name needs in short runs."""
        kind = getattr(losses, loss, None) if isinstance(loss, str) else None
        return CENTERS if isinstance(kind, type) and issubclass(kind, CenterBasedLoss) else {}

    def pretrain(self) -> None:
        """Do nothing: the weights are published ones."""

    def zero_shot(self, recipe: Path) -> Embedder:
        """The network without training on the dataset; images as in a recipe."""
        return Recipe.load(recipe, self.words).create_zero_shot_embedder()
