"""The kinds of models that have a folder: how each is called, what its config holds, what its card says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vicinal.models.model_card import embedder_card, refiner_card

# No number of layers, channels or pixels is above this; to build a billion layers would take hours before it failed.
MAX_NUMBER = 16_384
MAX_DIM = 65_536
MAX_DEPTH = 1_000

OF_ALL: dict[str, tuple[type, ...]] = {"recipe": (dict,), "metrics": (dict,)}


@dataclass(frozen=True)
class ModelFormat:
    """A kind of model, as its folder knows it.

    Args:
        name: the config's `format`.
        noun: what such a model is called.
        use: where it is taken, for who gave it elsewhere.
        kinds: types of the config's values by key, the one to name first.
        largest: the largest number, also of those inside lists and mappings, by key.
        card: the model card, from the model's name and its config.
    """

    name: str
    noun: str
    use: str
    kinds: Mapping[str, tuple[type, ...]]
    largest: Mapping[str, int]
    card: Callable[[str, Mapping[str, Any]], str]


EMBEDDER = ModelFormat(
    name="vicinal-embedder",
    noun="an embedder",
    use="give it with --model, or load it with Embedder.from_pretrained",
    kinds={
        "backbone": (str,),
        "backbone_args": (dict,),
        "pooling": (str,),
        "p": (int, float),
        "learned_p": (bool,),
        "norm": (str,),
        "dim": (int,),
        "dropout": (int, float),
        "projector": (int, type(None)),
        "freeze_batch_norm": (bool,),
        "transform": (dict,),
        **OF_ALL,
    },
    largest={"backbone_args": MAX_NUMBER, "transform": MAX_NUMBER},
    card=embedder_card,
)

REFINER = ModelFormat(
    name="vicinal-refiner",
    noun="a context refiner",
    use="give it with --refiner, or load it with ContextRefiner.from_pretrained",
    kinds={
        "dim": (int,),
        "depth": (int,),
        "heads": (int,),
        "neighbors": (int,),
        "dropout": (int, float),
        "context": (str,),
        "model_fingerprint": (str, type(None)),
        **OF_ALL,
    },
    largest={"dim": MAX_DIM, "depth": MAX_DEPTH, "heads": MAX_NUMBER, "neighbors": MAX_NUMBER},
    card=refiner_card,
)

FORMATS = (EMBEDDER, REFINER)
