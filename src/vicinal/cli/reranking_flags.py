"""The flags of re-ranking, which `vicinal evaluate` and `vicinal search` have in common."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

from vicinal.cli.flags import Arguments, Parser
from vicinal.retrieval.reranking import RERANKINGS
from vicinal.utils.errors import InputError

# Their modules import torch, so help does not read the options from the classes; a test compares the two.
RERANKING_OPTIONS: dict[str, tuple[type, str]] = {
    "k": (int, "contextual: size of a neighborhood, with the image itself (default: 16)"),
    "beta": (float, "contextual: weight of shared neighbors, from 0 to below 1 (default: 0.1)"),
    "epsilon": (float, "contextual: how much farther than the k-th an image may be and still be a neighbor "
                "(default: 0)"),
    "k1": (int, "reciprocal: number of candidate neighbors (default: 20)"),
    "k2": (int, "reciprocal: number of images that are averaged, at most k1 (default: 6)"),
    "lam": (float, "reciprocal: weight of the original distance, from 1e-30 to 1 (default: 0.3)"),
    "n": (int, "query-expansion, database-augmentation, neighbor-average: number of neighbors added "
          "(default: 10; 8 for the last)"),
    "alpha": (float, "the same: exponent of the neighbors' weights (default: 3; 0 for the last)"),
}  # fmt: skip


def add_reranking(parser: Parser, purpose: str) -> None:
    """Add the flags of a re-ranking."""
    group = parser.add_argument_group("re-ranking", purpose)
    group.add_argument(
        "--rerank", choices=RERANKINGS, type=lambda name: re.sub("^k[_-]", "", name).replace("_", "-"),
        help="contextual and reciprocal: images that share neighbors with the query are ranked higher; "
        "query-expansion: search again with the mean of each query and its neighbors; "
        "database-augmentation: search among the means of each gallery image and its neighbors; "
        "neighbor-average: both",
    )  # fmt: skip
    for option, (kind, text) in RERANKING_OPTIONS.items():
        group.add_argument(f"--rerank.{option}", type=kind, metavar=kind.__name__.upper(), help=text)


def read_reranking(arguments: Arguments) -> Any:
    """The re-ranking of the flags, or None without one.

    Raises:
        InputError: an option is given that is not one of the re-ranking, or without any.
    """
    options = {name: getattr(arguments, f"rerank.{name}") for name in RERANKING_OPTIONS}
    options = {name: value for name, value in options.items() if value is not None}
    if arguments.rerank is None:
        if options:
            raise InputError(f"--rerank.{next(iter(options))} is an option of a re-ranking; give --rerank too")
        return None
    from vicinal import retrieval

    kind = getattr(retrieval, RERANKINGS[arguments.rerank])
    known = [field.name for field in fields(kind)]
    for name in options:
        if name not in known:
            raise InputError(f"--rerank.{name} is not an option of {arguments.rerank}; its options: {', '.join(known)}")
    return kind(**options)
