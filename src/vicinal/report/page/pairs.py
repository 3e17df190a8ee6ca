"""How similar images of one class are, and images of two: histograms of pairs drawn by chance."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from vicinal.data.table import Table
from vicinal.evaluation.relevance import group_codes
from vicinal.retrieval.scores import Array, UnitVectors

PAIRS, BINS = 20_000, 60
BLOCK = 4096  # pairs at a time: 16 MB at 512 dimensions
TRIES = 4  # draws of a partner that may be of the wrong kind

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class PairSimilarities(NamedTuple):
    """Cosine similarities of pairs of a query and a gallery image.

    Attributes:
        positive: float64 [p], pairs of one class.
        negative: float64 [n], pairs of two.
    """

    positive: Floats
    negative: Floats


class Histogram(NamedTuple):
    """Shares of the pairs in each bin, from 0 to 1.

    Attributes:
        edges: float64 [bins + 1].
        positive: float64 [bins].
        negative: float64 [bins].
        overlap: what both have in common, from 0 (apart) to 1 (alike).
    """

    edges: Floats
    positive: Floats
    negative: Floats
    overlap: float


def pair_similarities(
    vectors: Array, table: Table, queries: Integers, gallery: Integers, pairs: int = PAIRS, seed: int = 0
) -> PairSimilarities:
    """Draw pairs of a query and a gallery image, with replacement, and compare them.

    A pair is never an image with itself, nor, in a table with groups, two of one class and group.

    Args:
        vectors: float [rows, dim].
        table: one row a vector, with labels.
        queries: int64 [q], rows.
        gallery: int64 [g], rows.
        pairs: drawn of each kind; some fall out where classes have one image.
        seed: of the draw.

    Example:
        >>> import pandas as pd
        >>> table = Table(pd.DataFrame({"label": [0, 0, 1, 1]}))
        >>> every = np.arange(4)
        >>> found = pair_similarities(np.eye(2)[[0, 0, 1, 1]], table, every, every, pairs=50)
        >>> set(found.positive.tolist()), set(found.negative.tolist())
        ({1.0}, {0.0})
    """
    generator = np.random.default_rng(seed)
    labels = table.labels
    groups = group_codes(table)
    unit = UnitVectors(vectors, "embedding")
    kinds = [
        _positive_pairs(labels, groups, queries, gallery, pairs, generator),
        _negative_pairs(labels, queries, gallery, pairs, generator),
    ]
    return PairSimilarities(*(_similarities(unit, *kind) for kind in kinds))


def histogram(similarities: PairSimilarities, bins: int = BINS) -> Histogram:
    """Count both kinds in the same bins.

    Example:
        >>> histogram(PairSimilarities(np.array([0.9, 1.0]), np.array([0.0, 0.1])), bins=2).overlap
        0.0
    """
    both = np.concatenate(similarities)
    low, high = (float(both.min()), float(both.max())) if len(both) else (0.0, 1.0)
    edges = np.linspace(low, high if high > low else low + 1e-3, bins + 1)
    positive, negative = (np.histogram(values, edges)[0] / max(len(values), 1) for values in similarities)
    return Histogram(edges, positive, negative, float(np.minimum(positive, negative).sum()))


def _positive_pairs(
    labels: Integers, groups: Integers, queries: Integers, gallery: Integers, pairs: int, generator: np.random.Generator
) -> tuple[Integers, Integers]:
    order = gallery[np.argsort(labels[gallery], kind="stable")]
    first = generator.choice(queries, pairs)
    low, high = (np.searchsorted(labels[order], labels[first], side) for side in ("left", "right"))
    first, low, high = (values[high > low] for values in (first, low, high))
    second = np.full(len(first), -1)
    for _ in range(TRIES):
        drawn = order[generator.integers(low, high)]
        fits = (drawn != first) & ((groups[drawn] != groups[first]) | (groups[first] < 0))
        second = np.where((second < 0) & fits, drawn, second)
    return first[second >= 0], second[second >= 0]


def _negative_pairs(
    labels: Integers, queries: Integers, gallery: Integers, pairs: int, generator: np.random.Generator
) -> tuple[Integers, Integers]:
    first = generator.choice(queries, pairs)
    second = np.full(pairs, -1)
    for _ in range(TRIES):
        drawn = generator.choice(gallery, pairs)
        second = np.where((second < 0) & (labels[drawn] != labels[first]), drawn, second)
    return first[second >= 0], second[second >= 0]


def _similarities(unit: UnitVectors, first: Integers, second: Integers) -> Floats:
    blocks = [slice(start, start + BLOCK) for start in range(0, len(first), BLOCK)]
    values = [(unit.take(first[block]) * unit.take(second[block])).sum(dim=1).cpu().numpy() for block in blocks]
    return np.concatenate([np.empty(0), *values]).astype(np.float64)
