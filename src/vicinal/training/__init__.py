"""Training: from a recipe to a run folder with a model."""

from vicinal.training.recipe import Recipe, recipe_parser
from vicinal.training.run import RunFolder
from vicinal.training.schedule import Schedule
from vicinal.training.start import resume, train
from vicinal.training.trainer import Trainer

__all__ = ["Recipe", "RunFolder", "Schedule", "Trainer", "recipe_parser", "resume", "train"]
