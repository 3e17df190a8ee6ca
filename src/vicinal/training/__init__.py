"""Training: from a recipe to a run folder with a model."""

from typing import TYPE_CHECKING

from vicinal.utils.imports import lazy_imports

if TYPE_CHECKING:
    from vicinal.training.large_batch import embed_in_micro_batches
    from vicinal.training.recipes.recipe import Recipe, RefinerRecipe
    from vicinal.training.refiner_trainer import RefinerTrainer
    from vicinal.training.runs import resume, train
    from vicinal.training.schedule import Schedule
    from vicinal.training.trainer import Trainer

__all__ = [
    "Recipe",
    "RefinerRecipe",
    "RefinerTrainer",
    "Schedule",
    "Trainer",
    "embed_in_micro_batches",
    "resume",
    "train",
]

__getattr__, __dir__ = lazy_imports(__name__)
