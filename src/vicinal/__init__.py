"""Vicinal: deep metric learning and image retrieval, from training to search.

The names below are imported when they are first used, so that `import vicinal` takes no time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vicinal.utils.imports import lazy_imports

if TYPE_CHECKING:
    from vicinal import (
        analysis,
        data,
        distillation,
        evaluation,
        losses,
        matryoshka,
        memory,
        mining,
        mixing,
        models,
        report,
        retrieval,
        similarity,
        training,
        weighting,
        workflows,
    )
    from vicinal.data import Table, load_table
    from vicinal.evaluation import evaluate
    from vicinal.mixing import SiMix
    from vicinal.models import ContextRefiner, Embedder
    from vicinal.retrieval import Index
    from vicinal.serving.client import Client
    from vicinal.training import Recipe, RefinerRecipe, resume, train
    from vicinal.utils.memory import keep_large_blocks
    from vicinal.workflows.refine import resume_refiner, train_refiner
else:
    __getattr__, __dir__ = lazy_imports(__name__)


__version__ = "0.1.0"

__all__ = [
    "Client",
    "ContextRefiner",
    "Embedder",
    "Index",
    "Recipe",
    "RefinerRecipe",
    "SiMix",
    "Table",
    "__version__",
    "analysis",
    "data",
    "distillation",
    "evaluate",
    "evaluation",
    "keep_large_blocks",
    "load_table",
    "losses",
    "matryoshka",
    "memory",
    "mining",
    "mixing",
    "models",
    "report",
    "resume",
    "resume_refiner",
    "retrieval",
    "similarity",
    "train",
    "train_refiner",
    "training",
    "weighting",
    "workflows",
]
