"""The similarity of each query to its own class, and to the nearest of the other classes, pooled over their images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vicinal.retrieval.calibration import LOWEST_SIMILARITY, POOLINGS, Pooling
from vicinal.retrieval.exclusions import Exclusions
from vicinal.retrieval.scores import BLOCK_ROWS, ScoreBuffer, UnitVectors, check_same_dim, rows_within_budget
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.errors import InputError

NUM_BEST = 2  # images of a class whose similarities `mean` averages: of 2, 3, 5 and all, two identify best
MIN_ROWS, MAX_ROWS = 64, 1024  # queries per block


@dataclass(frozen=True)
class ClassSimilarities:
    """The similarity of queries to the classes of a gallery, pooled over the images of a class.

    Attributes:
        own: float32 [queries], of the query's own class; minus infinity where the gallery has no image of it that the
            query may find.
        others: float32 [queries, n], of the n most similar other classes, best first; minus infinity where there are
            fewer.
        other_labels: int64 [queries, n], these classes; -1 where there are fewer.
    """

    own: Floats
    others: Floats
    other_labels: Integers

    @property
    def best(self) -> Floats:
        """The similarity to the most similar class."""
        return np.maximum(self.own, self.others[:, 0])

    @property
    def runner_up(self) -> Floats:
        """The similarity to the second most similar class, -1 with one class only; two others must be given."""
        first, second = self.others[:, 0], self.others[:, 1]
        runner_up = np.where(self.own > first, first, np.maximum(self.own, second))
        return np.maximum(runner_up, LOWEST_SIMILARITY)


def class_similarities(
    queries: UnitVectors,
    gallery: UnitVectors,
    query_labels: Integers,
    gallery_labels: Integers,
    exclusions: Exclusions | None = None,
    num_others: int = 2,
    pooling: Pooling = "best",
) -> ClassSimilarities:
    """Compare every query with every class, exactly, in bounded memory.

    Blocks of queries are multiplied with blocks of the gallery. About 64 MB are needed in addition to the vectors, and
    256 bytes per class where there are more than 262,144 classes.

    Args:
        queries: [q, dim].
        gallery: [g, dim].
        query_labels: int64 [q], from 0 up; a class need not be in the gallery.
        gallery_labels: int64 [g], from 0 up.
        exclusions: gallery vectors that a query must not find; None excludes none.
        num_others: number of other classes, n.
        pooling: the similarity to a class: `best`, to its most similar image; `mean`, of the two most similar ones; or
            `centroid`, to the mean of all. With another pooling than `best`, a block of scores has a column per gallery
            vector; for `centroid`, what is excluded must be of the query's own class.

    Raises:
        InputError: the dimensions differ, or the pooling is unknown.

    Example:
        >>> vectors = UnitVectors(np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]), "vector")
        >>> labels = np.array([0, 1, 2])
        >>> scores = class_similarities(vectors, vectors, labels, labels)
        >>> scores.own.tolist(), scores.others[0].round(4).tolist()
        ([1.0, 1.0, 1.0], [0.6000000238418579, 0.0])
    """
    check_same_dim(queries, gallery)
    if pooling not in POOLINGS:
        raise InputError(f"pooling = {pooling!r} is unknown; use {', '.join(POOLINGS)}")
    exclusions = exclusions or Exclusions(len(queries), len(gallery))
    num_classes = 1 + int(max(query_labels.max(initial=0), gallery_labels.max(initial=0)))
    width = BLOCK_ROWS if pooling == "best" else len(gallery)
    rows = rows_within_budget(max(num_classes, width), MIN_ROWS, MAX_ROWS, queries.device)
    buffer = ScoreBuffer(min(rows, len(queries)), min(len(gallery), width), queries.device)
    norms = _norms_of_sums(gallery, gallery_labels, num_classes) if pooling == "centroid" else None
    columns = torch.from_numpy(gallery_labels).to(queries.device)
    own_classes = torch.from_numpy(query_labels).to(queries.device)
    own = np.empty(len(queries), np.float32)
    others = np.full((len(queries), num_others), -np.inf, np.float32)
    other_labels = np.full((len(queries), num_others), -1, np.int64)
    for first in range(0, len(queries), rows):
        chunk = slice(first, min(first + rows, len(queries)))
        own_class = own_classes[chunk, None]
        if pooling == "best":
            class_scores = _best_by_class(queries, gallery, chunk, columns, num_classes, exclusions, buffer)
        else:
            scores = buffer.fill(queries.block(chunk.start, chunk.stop), gallery, 0, len(gallery))
            exclusions.mask(scores, chunk, 0)
            class_scores = _pooled_by_class(scores, gallery_labels, num_classes, norms)
            if norms is not None:
                _divide_by_own_norms(class_scores, scores, own_class, norms, gallery, columns)
        own[chunk] = class_scores.gather(1, own_class).flatten().cpu().numpy()
        nearest = class_scores.scatter_(1, own_class, -torch.inf).topk(min(num_others, num_classes), dim=1)
        others[chunk, : nearest.values.shape[1]] = nearest.values.cpu().numpy()
        other_labels[chunk, : nearest.values.shape[1]] = nearest.indices.cpu().numpy()
    other_labels[others == -np.inf] = -1
    return ClassSimilarities(own, others, other_labels)


def _best_by_class(
    queries: UnitVectors,
    gallery: UnitVectors,
    chunk: slice,
    columns: Tensor,
    num_classes: int,
    exclusions: Exclusions,
    buffer: ScoreBuffer,
) -> Tensor:
    """The similarity of a block of queries to every class, float32 [queries, classes]."""
    vectors = queries.block(chunk.start, chunk.stop)
    class_scores = torch.full((len(vectors), num_classes), -torch.inf, device=vectors.device)
    for start in range(0, len(gallery), BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, len(gallery))
        scores = buffer.fill(vectors, gallery, start, stop)
        exclusions.mask(scores, chunk, start)
        class_scores.scatter_reduce_(1, columns[start:stop].expand(len(vectors), -1), scores, "amax")
    return class_scores


def _pooled_by_class(scores: Tensor, labels: Integers, num_classes: int, norms: Tensor | None) -> Tensor:
    """The mean of the best scores with each class or, with norms, the sum of all / norm, float32 [queries, classes]."""
    pooled = torch.full((len(scores), num_classes), -torch.inf, device=scores.device)
    order, counts = np.argsort(labels, kind="stable"), np.bincount(labels, minlength=num_classes)
    starts = np.cumsum(counts) - counts
    for size in np.unique(counts[counts > 0]).tolist():  # classes of one size together
        classes = np.flatnonzero(counts == size)
        columns = torch.from_numpy(order[starts[classes][:, None] + np.arange(size)]).to(scores.device)
        class_scores = scores[:, columns]
        best = class_scores if norms is not None else class_scores.topk(min(NUM_BEST, size), dim=2).values
        is_found = best > -torch.inf
        num_found = is_found.sum(dim=2)
        total = torch.where(is_found, best, 0.0).sum(dim=2)
        class_indices = torch.from_numpy(classes).to(scores.device)
        value = total / (num_found if norms is None else norms[class_indices])
        pooled[:, class_indices] = torch.where(num_found > 0, value, -torch.inf)
    return pooled


def _norms_of_sums(gallery: UnitVectors, labels: Integers, num_classes: int) -> Tensor:
    """The length of the sum of the vectors of each class, float32 [classes], at least a tiny number."""
    sums = torch.zeros(num_classes, gallery.dim, dtype=torch.float64, device=gallery.device)
    for start in range(0, len(gallery), BLOCK_ROWS):
        block = gallery.block(start, min(start + BLOCK_ROWS, len(gallery))).double()
        sums.index_add_(0, torch.from_numpy(labels[start : start + len(block)]).to(block.device), block)
    return sums.norm(dim=1).clamp_min(1e-12).float()


def _divide_by_own_norms(
    pooled: Tensor, scores: Tensor, own_class: Tensor, norms: Tensor, gallery: UnitVectors, columns: Tensor
) -> None:
    """Divide the scores with the query's own class by the length of the sum of its remaining vectors, in place.

    The scores, [queries, gallery], are minus infinity where a vector is excluded; `columns` are the classes of the
    gallery.
    """
    excluded = scores == -torch.inf
    for row in excluded.any(dim=1).nonzero().flatten().tolist():
        own = int(own_class[row, 0])
        remaining = ((columns == own) & ~excluded[row]).nonzero().flatten().cpu().numpy()
        if len(remaining):
            length = gallery.take(remaining).double().sum(dim=0).norm().clamp_min(1e-12)
            pooled[row, own] *= norms[own] / length.float()
