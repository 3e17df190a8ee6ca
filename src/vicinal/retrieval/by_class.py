"""The best similarity of each query to its own class, and to the nearest of the other classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vicinal.retrieval.exclusions import Exclusions
from vicinal.retrieval.scores import BLOCK_ROWS, ScoreBuffer, UnitVectors, check_same_dim, rows_within_budget
from vicinal.utils.arrays import Floats, Integers

MIN_ROWS, MAX_ROWS = 64, 1024  # queries per block


@dataclass(frozen=True)
class ClassSimilarities:
    """The similarity of queries to the classes of a gallery: of a class, that of its most similar image.

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


def class_similarities(
    queries: UnitVectors,
    gallery: UnitVectors,
    query_labels: Integers,
    gallery_labels: Integers,
    exclusions: Exclusions | None = None,
    num_others: int = 2,
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

    Raises:
        InputError: the dimensions differ.

    Example:
        >>> vectors = UnitVectors(np.array([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]]), "vector")
        >>> labels = np.array([0, 1, 2])
        >>> scores = class_similarities(vectors, vectors, labels, labels)
        >>> scores.own.tolist(), scores.others[0].round(4).tolist()
        ([1.0, 1.0, 1.0], [0.6000000238418579, 0.0])
    """
    check_same_dim(queries, gallery)
    exclusions = exclusions or Exclusions(len(queries), len(gallery))
    num_classes = 1 + int(max(query_labels.max(initial=0), gallery_labels.max(initial=0)))
    rows = rows_within_budget(max(num_classes, BLOCK_ROWS), MIN_ROWS, MAX_ROWS, queries.device)
    buffer = ScoreBuffer(min(rows, len(queries)), min(len(gallery), BLOCK_ROWS), queries.device)
    columns = torch.from_numpy(gallery_labels).to(queries.device)
    own_classes = torch.from_numpy(query_labels).to(queries.device)
    own = np.empty(len(queries), np.float32)
    others = np.full((len(queries), num_others), -np.inf, np.float32)
    other_labels = np.full((len(queries), num_others), -1, np.int64)
    for first in range(0, len(queries), rows):
        chunk = slice(first, min(first + rows, len(queries)))
        best = _best_by_class(queries, gallery, chunk, columns, num_classes, exclusions, buffer)
        mine = own_classes[chunk, None]
        own[chunk] = best.gather(1, mine).flatten().cpu().numpy()
        nearest = best.scatter_(1, mine, -torch.inf).topk(min(num_others, num_classes), dim=1)
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
    best = torch.full((len(vectors), num_classes), -torch.inf, device=vectors.device)
    for start in range(0, len(gallery), BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, len(gallery))
        scores = buffer.fill(vectors, gallery, start, stop)
        exclusions.mask(scores, chunk, start)
        best.scatter_reduce_(1, columns[start:stop].expand(len(vectors), -1), scores, "amax")
    return best
