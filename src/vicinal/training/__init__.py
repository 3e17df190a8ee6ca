"""Training: from a recipe to a run folder with a model."""

from vicinal.training.large_batch import embed_in_micro_batches
from vicinal.training.recipe import Recipe
from vicinal.training.refiner_recipe import RefinerRecipe
from vicinal.training.refiner_trainer import RefinerTrainer
from vicinal.training.run import RunFolder
from vicinal.training.schedule import Schedule
from vicinal.training.start import resume, train
from vicinal.training.trainer import Trainer

__all__ = [
    "Recipe",
    "RefinerRecipe",
    "RefinerTrainer",
    "RunFolder",
    "Schedule",
    "Trainer",
    "embed_in_micro_batches",
    "resume",
    "train",
]
