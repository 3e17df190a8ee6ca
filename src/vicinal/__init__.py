"""Vicinal: deep metric learning and image retrieval, from training to search.

The names below are imported when they are first used, so that `import vicinal` takes no time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vicinal.utils.imports import lazy_imports

if TYPE_CHECKING:
    from vicinal import analysis as analysis
    from vicinal import data as data
    from vicinal import distillation as distillation
    from vicinal import evaluation as evaluation
    from vicinal import losses as losses
    from vicinal import matryoshka as matryoshka
    from vicinal import memory as memory
    from vicinal import mining as mining
    from vicinal import mixing as mixing
    from vicinal import models as models
    from vicinal import report as report
    from vicinal import retrieval as retrieval
    from vicinal import similarity as similarity
    from vicinal import training as training
    from vicinal import weighting as weighting
    from vicinal import workflows as workflows
    from vicinal.data import Table as Table
    from vicinal.data import load_table as load_table
    from vicinal.evaluation import evaluate as evaluate
    from vicinal.mixing import SiMix as SiMix
    from vicinal.models import ContextRefiner as ContextRefiner
    from vicinal.models import Embedder as Embedder
    from vicinal.retrieval import Index as Index
    from vicinal.serving.client import Client as Client
    from vicinal.training import Recipe as Recipe
    from vicinal.training import RefinerRecipe as RefinerRecipe
    from vicinal.training import resume as resume
    from vicinal.training import train as train
    from vicinal.utils.memory import keep_large_blocks as keep_large_blocks
    from vicinal.workflows.refine import resume_refiner as resume_refiner
    from vicinal.workflows.refine import train_refiner as train_refiner
else:
    __getattr__, __dir__ = lazy_imports(__name__)


__version__ = "0.1.0"
