"""Scores of a refiner on classes that it is not trained on, at several numbers of images per class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from vicinal.data import Table
from vicinal.evaluation import evaluate
from vicinal.models import ContextRefiner
from vicinal.retrieval import Refinement
from vicinal.retrieval.query_gallery import QueryGallery
from vicinal.retrieval.scores import UnitVectors
from vicinal.utils.arrays import Doubles, Floats, Integers
from vicinal.utils.errors import InputError

MAX_PARTS = 8  # of a validation split; more would cost time and say little more


@dataclass(frozen=True)
class Scores:
    """Metrics with the scores of every query."""

    metrics: dict[str, float]  # name -> mean over the queries
    per_query: dict[str, Doubles]  # name -> [queries]
    labels: Integers  # [queries]

    def gain(self, before: Scores, metric: str) -> tuple[float, float]:
        """The mean over the classes of the gain in a metric, and its standard error."""
        return mean_of_classes(self.per_query[metric] - before.per_query[metric], self.labels)

    def gain_in_errors(self, before: Scores, metric: str) -> float:
        gain, error = self.gain(before, metric)
        return gain / max(error, 1e-12)


class ContextPart:
    """Images that search each other, with their neighbors."""

    def __init__(self, refiner: ContextRefiner, vectors: UnitVectors, table: Table) -> None:
        self.method, self.vectors, self.table = Refinement(refiner), vectors, table
        self.neighbors = self.method.find_context(QueryGallery.leave_one_out(vectors))

    def refined(self) -> Floats:
        """The refined vectors, float32 [n, dim]."""
        return self.method.refine_vectors(self.vectors, self.vectors, self.neighbors)

    def right_class_attention(self) -> tuple[float, float]:
        """The fraction of the attention to neighbors that goes to the image's own class, and the fraction of such
        neighbors.

        The first equals the second where attention is uniform. It is the mean over blocks, heads and images.
        """
        is_right = self.table.labels[self.neighbors] == self.table.labels[:, None]
        weights = self.method.attention(self.vectors, self.vectors, self.neighbors)
        totals = weights.sum(axis=1).clip(1e-12)
        return float(((weights * is_right).sum(axis=1) / totals).mean()), float(is_right.mean())


class RefinerValidation:
    """Embeddings of classes that are not trained on, before and after refinement.

    Images search each other within each part; the scores are those of all their queries together.
    """

    def __init__(self, parts: Sequence[ContextPart], metrics: Sequence[str]) -> None:
        self.parts, self.metrics = parts, metrics
        self.before = self._scores([part.vectors.block(0, len(part.vectors)).cpu().numpy() for part in parts])

    @classmethod
    def of_class_size(
        cls, refiner: ContextRefiner, vectors: UnitVectors, table: Table, metrics: Sequence[str], size: int, seed: int
    ) -> RefinerValidation | None:
        """The validation with this number of images per class, in disjoint parts; None if the metrics need more."""
        rows = parts_of_classes(table.labels, size, seed)
        parts = [ContextPart(refiner, vectors.subset(each), table.take(each)) for each in rows]
        try:
            return cls(parts, metrics) if parts else None
        except InputError:  # such as recall@8 of six images, or classes whose images are all of one group
            return None

    def after(self) -> Scores:
        return self._scores([part.refined() for part in self.parts])

    def _scores(self, vectors: Sequence[Floats]) -> Scores:
        device = self.parts[0].vectors.device
        found = [
            evaluate(torch.from_numpy(each).to(device), part.table, metrics=self.metrics).per_query
            for each, part in zip(vectors, self.parts, strict=True)
        ]
        per_query = {name: np.concatenate([each[name] for each in found]) for name in found[0]}
        labels = np.concatenate([part.table.frame["label"].to_numpy() for part in self.parts])
        return Scores({name: float(np.nanmean(each)) for name, each in per_query.items()}, per_query, labels)


def parts_of_classes(labels: Integers, size: int, seed: int) -> list[Integers]:
    """Disjoint parts, each of `size` random images of every class that has enough: rows, ascending.

    There are as many parts as the smallest of these classes allows, at most 8; none if fewer than two classes have
    enough images.
    """
    rng = np.random.default_rng(seed)
    images = [rng.permutation(np.flatnonzero(labels == label)) for label in np.unique(labels)]
    images = [rows for rows in images if len(rows) >= size]
    if len(images) < 2:
        return []
    number = min(MAX_PARTS, *(len(rows) // size for rows in images))
    return [np.sort(np.concatenate([rows[part * size :][:size] for rows in images])) for part in range(number)]


def mean_of_classes(values: Doubles, labels: Integers) -> tuple[float, float]:
    """The mean over classes of the mean of values [n] without NaN, and its standard error."""
    means = pd.Series(values).groupby(labels).mean().dropna().to_numpy()
    return float(means.mean()), float(means.std(ddof=1) / math.sqrt(len(means))) if len(means) > 1 else math.inf
