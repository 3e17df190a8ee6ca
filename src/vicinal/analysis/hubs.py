"""Hubs: images that are among the nearest neighbors of very many others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from vicinal.analysis.neighbors import QueryNeighbors
from vicinal.utils.arrays import Integers


@dataclass(frozen=True, eq=False)
class Hubness:
    """How often each gallery image is among the k nearest neighbors of the queries.

    Attributes:
        occurrences: one row per gallery image, the most frequent neighbor first. Columns: `row`, its row in the table;
            `k_occurrence`, the number of queries that have it among their k nearest; `same_class_fraction`, the
            fraction of these queries that are of its class, NaN without any, or without labels.
        skewness: of the k-occurrences; 0 if all images are found alike, far above 0 if there are hubs.
    """

    occurrences: pd.DataFrame
    skewness: float

    @property
    def mean(self) -> float:
        """The mean k-occurrence."""
        return float(self.occurrences["k_occurrence"].mean())

    @property
    def num_antihubs(self) -> int:
        """The number of gallery images that are no query's neighbor."""
        return int((self.occurrences["k_occurrence"] == 0).sum())


def hubness(neighbors: QueryNeighbors) -> Hubness:
    """Count in how many queries' lists of nearest neighbors each gallery image is.

    Reference: Radovanović et al., "Hubs in Space: Popular Nearest Neighbors in High-Dimensional Data", JMLR 2010:
    k-occurrences, their skewness, hubs and antihubs.

    Example:
        >>> from vicinal.analysis import query_neighbors
        >>> from vicinal.data import Table
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog"]}))
        >>> found = hubness(query_neighbors(np.array([[2, 1], [3, 2], [1, 1]]), table, k=1))
        >>> found.occurrences
           row  k_occurrence  same_class_fraction
        0    1             2                  0.5
        1    0             1                  1.0
        2    2             0                  NaN
        >>> found.num_antihubs
        1
    """
    size = len(neighbors.table)
    counts = np.bincount(neighbors.ids.ravel(), minlength=size)[neighbors.gallery]
    right = np.bincount(neighbors.ids.ravel(), neighbors.same_class.ravel(), size)[neighbors.gallery]
    is_known = (counts > 0) & neighbors.table.has("label")
    fractions = np.divide(right, counts, out=np.full(len(counts), np.nan), where=is_known)
    columns = {"row": neighbors.gallery, "k_occurrence": counts, "same_class_fraction": fractions}
    occurrences = pd.DataFrame(columns).sort_values("k_occurrence", ascending=False, kind="stable", ignore_index=True)
    return Hubness(occurrences, _skewness(counts))


def _skewness(counts: Integers) -> float:
    deviation = counts.std()
    return float((((counts - counts.mean()) / deviation) ** 3).mean()) if deviation else 0.0
