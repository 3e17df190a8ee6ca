"""The recipe of an embedder: every setting of its training."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, ClassVar

import jsonargparse

from vicinal.models import Embedder, default_transform
from vicinal.training.base_recipe import BaseRecipe
from vicinal.training.settings import TrainingSettings
from vicinal.utils.console import condensed_retries
from vicinal.utils.errors import InputError


class Recipe(BaseRecipe):
    """The recipe of a training run: data, transform, model, loss, optimizer, schedule and all other settings.

    Attributes:
        settings: all settings except those of the model and the loss.
        model: arguments of :class:`~vicinal.models.Embedder`.
        config: the recipe as plain nested values, with every default filled in.

    Example:
        >>> recipe = Recipe.load(overrides=["--data.source=digits", "--optimizer.lr=0.01", "--loss.alpha=4"])
        >>> recipe.settings.optimizer.lr, recipe.create_loss().alpha
        (0.01, 4.0)
    """

    verb = "train"
    settings_class = TrainingSettings
    first_settings = frozenset({"data", "transform"})
    model_class, model_key = Embedder, "model"
    fixed_arguments = frozenset({"transform"})
    default_loss: ClassVar = {"class_path": "MultiSimilarityLoss"}

    settings: TrainingSettings

    @classmethod
    def _set_defaults(cls, parser: jsonargparse.ArgumentParser, values: dict[str, Any]) -> None:
        """Set the defaults of size, mean, std and interpolation to those of the backbone's weights."""
        namespace = parser.parse_object(deepcopy(values))
        try:
            default = default_transform(namespace.model.backbone)
        except InputError as error:
            raise InputError(f"model.{error}") from None
        parser.set_defaults({"transform.size": default.size, "transform.interpolation": default.interpolation})
        if namespace.transform.channels == len(default.mean):
            parser.set_defaults({"transform.mean": default.mean, "transform.std": default.std})

    def create_embedder(self) -> Embedder:
        """Create the model, with initial weights from the global random generator."""
        try:
            with condensed_retries():
                return Embedder(**self.model, transform=self.settings.transform)
        except InputError as error:
            raise InputError(f"model: {str(error).replace('pretrained=false', 'model.pretrained: false')}") from None
