"""The recipe of a refiner: every setting of its training."""

from __future__ import annotations

from typing import Any

import jsonargparse
import torch

from vicinal.errors import InputError
from vicinal.losses import Loss
from vicinal.models import ContextRefiner
from vicinal.training.config import Config, empty_parser
from vicinal.training.loop_settings import require
from vicinal.training.refiner_settings import RefinerSettings


class RefinerRecipe(Config):
    """The training of a context refiner described completely.

    Attributes:
        settings: all but refiner and loss.
        arguments: of :class:`~vicinal.models.ContextRefiner`, without `dim`.
        config: the whole recipe as plain nested values, every default filled in.

    Example:
        >>> recipe = RefinerRecipe.load(overrides=["--embeddings=e.parquet", "--refiner.depth=4", "--loss=MarginLoss"])
        >>> recipe.settings.embeddings, recipe.refiner(dim=64).depth
        ('e.parquet', 4)
    """

    verb = "refine"

    def __init__(self, parser: jsonargparse.ArgumentParser, namespace: jsonargparse.Namespace) -> None:
        super().__init__(parser, namespace)
        self.arguments: dict[str, Any] = namespace.refiner.as_dict()
        objects = parser.instantiate(namespace)
        self.settings = RefinerSettings(**{name: objects[name] for name in RefinerSettings.__dataclass_fields__})
        self._check_refiner()

    @staticmethod
    def parser() -> jsonargparse.ArgumentParser:
        parser = empty_parser()
        parser.add_class_arguments(RefinerSettings, None, as_group=False)
        parser.add_class_arguments(ContextRefiner, "refiner", skip={"dim"}, instantiate=False)
        default = {"class_path": "MultiSimilarityLoss", "init_args": {"base": 0.5}}
        parser.add_subclass_arguments(Loss, "loss", default=default)
        return parser

    def refiner(self, dim: int) -> ContextRefiner:
        """A new refiner with initial weights from the global generator."""
        try:
            return ContextRefiner(dim, **self.arguments)
        except InputError as error:
            raise InputError(str(error).replace("ContextRefiner: ", "refiner.", 1)) from None

    def _check_refiner(self) -> None:
        """Raise InputError at the first argument that suits no dimension, or with which there is nothing to train."""
        with torch.device("meta"):
            self.refiner(dim=max(1, self.arguments["heads"]))
        some = self.arguments["neighbors"] > 0 or self.arguments["context"] == "itself"
        require(some, "refiner.neighbors", self.arguments["neighbors"], "at least 1: without any there is no training")
