"""The recipe of a refiner: every setting of its training."""

from __future__ import annotations

from typing import Any

import torch

from vicinal.models import ContextRefiner
from vicinal.training.recipes.base_recipe import BaseRecipe
from vicinal.training.recipes.checks import require
from vicinal.training.recipes.refiner_settings import DEFAULT_LOSS, RefinerSettings
from vicinal.utils.errors import InputError


class RefinerRecipe(BaseRecipe):
    """The recipe of a context refiner's training.

    Attributes:
        settings: all settings except those of the refiner and the loss.
        model: arguments of :class:`~vicinal.models.ContextRefiner`, without `dim`.
        config: the recipe as plain nested values, with every default filled in.

    Example:
        >>> recipe = RefinerRecipe.load(overrides=["--embeddings=e.parquet", "--refiner.depth=4", "--loss=MarginLoss"])
        >>> recipe.settings.embeddings, recipe.create_refiner(dim=64).depth
        ('e.parquet', 4)
    """

    verb = "refine"
    settings_class = RefinerSettings
    first_settings = frozenset({"embeddings", "run"})
    model_class, model_key = ContextRefiner, "refiner"
    fixed_arguments = frozenset({"dim"})
    default_loss = DEFAULT_LOSS

    settings: RefinerSettings

    def __init__(
        self, values: dict[str, Any], given: frozenset[str] = frozenset(), allow_imports: tuple[str, ...] = ()
    ) -> None:
        super().__init__(values, given, allow_imports)
        self._check_refiner()

    def create_refiner(self, dim: int) -> ContextRefiner:
        """Create the refiner, with initial weights from the global random generator."""
        try:
            return ContextRefiner(dim, **self.model)
        except InputError as error:
            raise InputError(str(error).replace("ContextRefiner: ", "refiner.", 1)) from None

    def _check_refiner(self) -> None:
        """Raise InputError if an argument is invalid for every dimension, or leaves nothing to train."""
        with torch.device("meta"):
            self.create_refiner(dim=max(1, self.model["num_heads"]))
        trainable = self.model["neighbors"] > 0 or self.model["context"] == "self"
        require(
            trainable, "refiner.neighbors", self.model["neighbors"], "at least 1: without neighbors nothing is trained"
        )
