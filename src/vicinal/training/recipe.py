"""The recipe: every setting of a training run."""

from __future__ import annotations

from typing import Any

import jsonargparse

from vicinal.errors import InputError
from vicinal.losses import Loss
from vicinal.models import Embedder, default_transform
from vicinal.training.config import Config, empty_parser
from vicinal.training.settings import Settings


class Recipe(Config):
    """A training run described completely: data, transform, model, loss, optimiser, schedule and the rest.

    Attributes:
        settings: all but model and loss.
        model: arguments of :class:`~vicinal.models.Embedder`.
        config: the whole recipe as plain nested values, every default filled in.

    Example:
        >>> recipe = Recipe.load(overrides=["--data.source=digits", "--optimizer.lr=0.01", "--loss.alpha=4"])
        >>> recipe.settings.optimizer.lr, recipe.loss().alpha
        (0.01, 4.0)
    """

    verb = "train"

    def __init__(self, parser: jsonargparse.ArgumentParser, namespace: jsonargparse.Namespace) -> None:
        super().__init__(parser, namespace)
        self.model: dict[str, Any] = namespace.model.as_dict()
        objects = parser.instantiate(namespace)
        self.settings = Settings(**{name: objects[name] for name in Settings.__dataclass_fields__})

    @staticmethod
    def parser() -> jsonargparse.ArgumentParser:
        parser = empty_parser()
        parser.add_class_arguments(Settings, None, as_group=False)
        parser.add_class_arguments(Embedder, "model", skip={"transform"}, instantiate=False)
        parser.add_subclass_arguments(Loss, "loss", default={"class_path": "MultiSimilarityLoss"})
        return parser

    @classmethod
    def _expect(cls, parser: jsonargparse.ArgumentParser, arguments: list[str]) -> None:
        """Make size, mean, std and interpolation by default what the chosen backbone's weights were trained with."""
        namespace = parser.parse_args(arguments)
        expected = default_transform(namespace.model.backbone)
        parser.set_defaults({"transform.size": expected.size, "transform.interpolation": expected.interpolation})
        if namespace.transform.channels == len(expected.mean):
            parser.set_defaults({"transform.mean": expected.mean, "transform.std": expected.std})

    def embedder(self) -> Embedder:
        """A new model with initial weights from the global generator."""
        try:
            return Embedder(**self.model, transform=self.settings.transform)
        except InputError as error:
            raise InputError(f"model: {error}") from None
