"""The effect of a context refiner on the embeddings of a table."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from vicinal.data.table import Table
from vicinal.evaluation import evaluate, query_gallery_rows
from vicinal.models.refiner import ContextRefiner
from vicinal.retrieval.query_gallery import QueryGallery
from vicinal.retrieval.refinement import Refinement
from vicinal.retrieval.scores import Array, UnitVectors, check_rows
from vicinal.utils.arrays import Integers
from vicinal.utils.errors import InputError


class RefinerInput(NamedTuple):
    """The embeddings of queries and gallery together, in the order in which a refinement sees them."""

    vectors: UnitVectors  # on the refiner's device: the gallery, then the queries outside of it
    table: Table  # their rows
    rows: Integers  # their rows in the whole table

    def query_gallery(self) -> QueryGallery:
        """The embeddings as queries and gallery at once."""
        return QueryGallery(self.vectors, self.vectors, np.arange(len(self.vectors)))


def refiner_input(refiner: ContextRefiner, embeddings: Array, table: Table) -> RefinerInput:
    """Choose the embeddings that are evaluated, and check that the refiner fits them."""
    check_rows(embeddings, table)
    queries, gallery = query_gallery_rows(table)
    rows = np.concatenate([gallery, np.setdiff1d(queries, gallery)])
    if not len(rows):
        raise InputError("no embeddings to refine; the table needs at least one row that is a query or gallery image")
    refiner.check_dim(int(embeddings.shape[1]) if embeddings.ndim == 2 else -1)
    vectors = UnitVectors(embeddings, "embedding", rows, next(refiner.parameters()).device)
    return RefinerInput(vectors, table.take(rows), rows)


def metrics_by_depth(refiner: ContextRefiner, embeddings: Array, table: Table) -> list[dict[str, float]]:
    """Evaluate the embeddings after each block of a refiner, e^0 to e^T, with one search for their neighbors.

    The metrics at depth t are those of :func:`~vicinal.evaluation.evaluate` with
    ``rerank=Refinement(refiner, depth=t)``: the context is searched among queries and gallery together.

    Reference: Context Refiner, section 4.4 and Fig. 3.

    Args:
        refiner: trained on embeddings of the same model.
        embeddings: float [rows, dim].
        table: one row per embedding, with labels, and perhaps queries and gallery.

    Returns:
        The metrics by name, `recall@1`, `mAP@R` and so on, from 0 to 1, at each depth from 0 (the embeddings as they
        are) to the refiner's depth.

    Raises:
        InputError: another dimension or number of rows, no rows, or as :func:`~vicinal.evaluation.evaluate`.

    Example:
        >>> import pandas as pd
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog", "dog"]}))
        >>> embeddings = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> refiner = ContextRefiner(dim=2, depth=2, num_heads=1)
        >>> [metrics["recall@1"] for metrics in metrics_by_depth(refiner, embeddings, table)]
        [1.0, 1.0, 1.0]
    """
    evaluated = refiner_input(refiner, embeddings, table)
    vectors = evaluated.vectors
    metrics = [evaluate(embeddings, table).metrics]
    neighbors = Refinement(refiner).find_context(evaluated.query_gallery())
    for depth in range(1, refiner.depth + 1):
        refined = Refinement(refiner, depth=depth).refine_vectors(vectors, vectors, neighbors)
        metrics.append(evaluate(torch.from_numpy(refined).to(vectors.device), evaluated.table).metrics)
    return metrics
