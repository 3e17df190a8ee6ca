"""Vicinal: embeddings in which things of the same class are neighbours, from training to search.

The names most people need are here: `losses`, `memory`, `mining`, `weighting`, `Embedder`, `ContextRefiner`, `Table`,
`evaluate`, `Index`, `Recipe`, `train`. They are imported when first used, so that `import vicinal` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from vicinal import losses, memory, mining, weighting
    from vicinal.data import Table
    from vicinal.evaluation import evaluate
    from vicinal.models import ContextRefiner, Embedder
    from vicinal.retrieval import Index
    from vicinal.training import Recipe, train

_HOMES = {
    "losses": None,
    "memory": None,
    "mining": None,
    "weighting": None,
    "Table": "data",
    "evaluate": "evaluation",
    "ContextRefiner": "models",
    "Embedder": "models",
    "Index": "retrieval",
    "Recipe": "training",
    "train": "training",
}

__all__ = [
    "ContextRefiner",
    "Embedder",
    "Index",
    "Recipe",
    "Table",
    "__version__",
    "evaluate",
    "losses",
    "memory",
    "mining",
    "train",
    "weighting",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vicinal' has no attribute {name!r}")
    home = _HOMES[name]
    if home is None:
        return importlib.import_module(f"vicinal.{name}")
    return getattr(importlib.import_module(f"vicinal.{home}"), name)
