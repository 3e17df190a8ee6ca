"""How similar images of one class are, and images of two classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from vicinal.data.table import Table
from vicinal.evaluation.protocol import query_gallery_rows
from vicinal.evaluation.relevance import group_codes
from vicinal.retrieval.scores import Array, UnitVectors, check_rows
from vicinal.utils.arguments import check_positive_integer, check_seed
from vicinal.utils.arrays import Doubles, Integers

CHUNK_SIZE = 4096  # pairs per block: 16 MB at 512 dimensions
MAX_DRAWS = 4  # of a gallery image, until it makes a pair of the wanted kind with the query


@dataclass(frozen=True, eq=False)
class SimilarityHistogram:
    """Histograms of positive and of negative pairs over the same bins.

    Attributes:
        edges: float64 [num_bins + 1], of the bins.
        positive: float64 [num_bins], the fraction of the positive pairs in each bin.
        negative: float64 [num_bins], the fraction of the negative pairs in each bin.
    """

    edges: Doubles
    positive: Doubles
    negative: Doubles

    @property
    def overlap(self) -> float:
        """The area that the histograms have in common, from 0 (separate) to 1 (equal)."""
        return float(np.minimum(self.positive, self.negative).sum())


@dataclass(frozen=True, eq=False)
class PairSimilarities:
    """Cosine similarities of random pairs of a query and a gallery image.

    Attributes:
        positive: float64 [p], of pairs of one class.
        negative: float64 [n], of pairs of two classes.
    """

    positive: Doubles
    negative: Doubles

    def histogram(self, num_bins: int = 60) -> SimilarityHistogram:
        """Bin both kinds of pairs, over the range of all similarities.

        Example:
            >>> PairSimilarities(np.array([0.9, 1.0]), np.array([0.0, 0.1])).histogram(num_bins=2).overlap
            0.0
        """
        both = np.concatenate([self.positive, self.negative])
        low, high = (float(both.min()), float(both.max())) if len(both) else (0.0, 1.0)
        edges = np.linspace(low, high if high > low else low + 1e-3, num_bins + 1)
        fractions = (np.histogram(each, edges)[0] / max(len(each), 1) for each in (self.positive, self.negative))
        return SimilarityHistogram(edges, *fractions)


def pair_similarities(embeddings: Array, table: Table, num_pairs: int = 20_000, seed: int = 0) -> PairSimilarities:
    """Draw random pairs of a query and a gallery image, with replacement, and compute their cosine similarities.

    A pair is never an image with itself, nor two images of one class and `group`.

    Args:
        embeddings: float [rows, dim].
        table: one row per embedding, with labels, and perhaps queries and gallery.
        num_pairs: how many pairs of each kind to draw; fewer result where none of the kind is found, such as a positive
            pair of a class with one image.
        seed: of the random generator.

    Raises:
        InputError: numbers of rows differ, no labels, `num_pairs` is below 1, or the seed is invalid.

    Example:
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog", "dog"]}))
        >>> found = pair_similarities(np.eye(2)[[0, 0, 1, 1]], table, num_pairs=50)
        >>> set(found.positive.tolist()), set(found.negative.tolist())
        ({1.0}, {0.0})
    """
    check_rows(embeddings, table)
    check_positive_integer(pair_similarities, num_pairs=num_pairs)
    check_seed(pair_similarities, seed)
    generator = np.random.default_rng(seed)
    queries, gallery = query_gallery_rows(table)
    positive = _positive_pairs(table, generator.choice(queries, num_pairs), gallery, generator)
    negative = _negative_pairs(table.labels, generator.choice(queries, num_pairs), gallery, generator)
    unit = UnitVectors(embeddings, "embedding")
    return PairSimilarities(_similarities(unit, *positive), _similarities(unit, *negative))


def _positive_pairs(
    table: Table, queries: Integers, gallery: Integers, generator: np.random.Generator
) -> tuple[Integers, Integers]:
    labels, groups = table.labels, group_codes(table)
    images = pd.factorize(np.array(table.image_keys, dtype=object))[0] if table.has("path") else np.arange(len(table))
    by_class = gallery[np.argsort(labels[gallery], kind="stable")]
    low, high = (np.searchsorted(labels[by_class], labels[queries], side) for side in ("left", "right"))
    queries, low, high = (each[high > low] for each in (queries, low, high))
    partners = np.full(len(queries), -1)
    for _ in range(MAX_DRAWS):
        drawn = by_class[generator.integers(low, high)]
        is_other = images[drawn] != images[queries]
        is_allowed = is_other & ((groups[drawn] != groups[queries]) | (groups[queries] < 0))
        partners = np.where((partners < 0) & is_allowed, drawn, partners)
    return queries[partners >= 0], partners[partners >= 0]


def _negative_pairs(
    labels: Integers, queries: Integers, gallery: Integers, generator: np.random.Generator
) -> tuple[Integers, Integers]:
    partners = np.full(len(queries), -1)
    for _ in range(MAX_DRAWS):
        drawn = generator.choice(gallery, len(queries))
        partners = np.where((partners < 0) & (labels[drawn] != labels[queries]), drawn, partners)
    return queries[partners >= 0], partners[partners >= 0]


def _similarities(unit: UnitVectors, first: Integers, second: Integers) -> Doubles:
    chunks = [slice(start, start + CHUNK_SIZE) for start in range(0, len(first), CHUNK_SIZE)]
    values = [(unit.take(first[chunk]) * unit.take(second[chunk])).sum(dim=1).cpu().numpy() for chunk in chunks]
    return np.concatenate([np.empty(0), *values]).astype(np.float64)
