"""Training: from a recipe to a run folder with a model."""

from typing import TYPE_CHECKING

from vicinal.utils.imports import lazy_imports

if TYPE_CHECKING:
    from vicinal.training.large_batch import embed_in_micro_batches as embed_in_micro_batches
    from vicinal.training.recipes.recipe import Recipe as Recipe
    from vicinal.training.recipes.recipe import RefinerRecipe as RefinerRecipe
    from vicinal.training.refiner_trainer import RefinerTrainer as RefinerTrainer
    from vicinal.training.runs import resume as resume
    from vicinal.training.runs import train as train
    from vicinal.training.schedule import Schedule as Schedule
    from vicinal.training.trainer import Trainer as Trainer


__getattr__, __dir__ = lazy_imports(__name__)
