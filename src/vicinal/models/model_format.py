"""The kinds of saved models, with the types and limits of their configurations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vicinal.models.model_card import embedder_card, refiner_card

# Limits of the numbers in a configuration: building a network of a billion layers would take hours before it failed.
MAX_NUMBER = 16_384
MAX_DIM = 65_536
MAX_DEPTH = 1_000

COMMON_TYPES: dict[str, tuple[type, ...]] = {"recipe": (dict,), "metrics": (dict,)}


@dataclass(frozen=True)
class ModelFormat:
    """A kind of saved model.

    Args:
        name: The value of `format` in the configuration.
        noun: The kind of model in messages.
        usage: How to use such a model, for messages where another kind was expected.
        types: The types of each value of the configuration; messages name the first one.
        limits: The largest absolute value of a number, also inside lists and mappings, for some keys.
        card: A function that creates the model card from the name of the model and its configuration.
    """

    name: str
    noun: str
    usage: str
    types: Mapping[str, tuple[type, ...]]
    limits: Mapping[str, int]
    card: Callable[[str, Mapping[str, Any]], str]


EMBEDDER = ModelFormat(
    name="vicinal-embedder",
    noun="an embedder",
    usage="give it with --model, or load it with Embedder.from_pretrained",
    types={
        "backbone": (str,),
        "backbone_args": (dict,),
        "pooling": (str,),
        "p": (int, float),
        "learned_p": (bool,),
        "norm": (str,),
        "hidden": (int, type(None)),
        "dim": (int, type(None)),
        "dropout": (int, float),
        "projector": (int, type(None)),
        "freeze_batch_norm": (str,),
        "transform": (dict,),
        **COMMON_TYPES,
    },
    limits={"backbone_args": MAX_NUMBER, "transform": MAX_NUMBER},
    card=embedder_card,
)

REFINER = ModelFormat(
    name="vicinal-refiner",
    noun="a context refiner",
    usage="give it with --refiner, or load it with ContextRefiner.from_pretrained",
    types={
        "dim": (int,),
        "depth": (int,),
        "num_heads": (int,),
        "neighbors": (int,),
        "dropout": (int, float),
        "context": (str,),
        "attention_start": (str,),
        "temperature": (float, int),
        "learn_temperature": (bool,),
        "null_similarity": (float, int, type(None)),
        "residual_gate": (bool,),
        "inner_ratio": (float, int),
        "mlp_ratio": (float, int),
        "tie_weights": (bool,),
        "min_similarity": (float, int, type(None)),
        "model_fingerprint": (str, type(None)),
        **COMMON_TYPES,
    },
    limits={"dim": MAX_DIM, "depth": MAX_DEPTH, "num_heads": MAX_NUMBER, "neighbors": MAX_NUMBER},
    card=refiner_card,
)

FORMATS = {model_format.name: model_format for model_format in (EMBEDDER, REFINER)}
