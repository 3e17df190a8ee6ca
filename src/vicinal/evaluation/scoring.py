"""Every metric of every query, from one pass over the similarities."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import numpy as np

from vicinal.evaluation.metrics import Metric, first_positive_rank
from vicinal.evaluation.ranking import level_ranks
from vicinal.evaluation.relevance import Relevance
from vicinal.evaluation.result import Evaluation
from vicinal.retrieval.query_gallery import QueryGallery
from vicinal.retrieval.reranking.base import Reranking
from vicinal.retrieval.scores import check_chunk_size, check_same_dim
from vicinal.utils.arrays import Doubles, Integers
from vicinal.utils.errors import InputError

FINE = ""  # the name of the level of the labels; coarse levels are named by their column


def score_queries(
    searched: QueryGallery,
    levels: Mapping[str, Relevance],
    metrics: Mapping[str, Metric],
    *,
    protocol: str,
    query_indices: Integers,
    rerank: Reranking | None = None,
    chunk_size: int | None = None,
    divided: bool = False,
) -> Evaluation:
    """Compute every metric of every query at every level of labels.

    Args:
        searched: the queries and the gallery.
        levels: name -> relevance, that of the labels (:data:`FINE`) first.
        metrics: name -> metric.
        protocol: the name of the protocol.
        query_indices: int64 [q], the row of each query in what is evaluated.
        rerank: a method by which every ranking is re-ranked first.
        chunk_size: number of queries per tile.
        divided: whether the processes of `torch.distributed` divide the work.

    Raises:
        InputError: no query or no gallery image, other dimensions, an impossible chunk size, no query with a positive
            at some level, or a re-ranking that needs more neighbors than there are.
    """
    check_chunk_size(chunk_size)
    queries, gallery = searched.queries, searched.gallery
    if not (len(queries) and len(gallery)):
        raise InputError(f"{len(queries)} queries and {len(gallery)} gallery images; evaluation needs some of both")
    check_same_dim(queries, gallery)
    reranked = None if rerank is None else rerank.apply(searched)
    if reranked is not None:
        queries, gallery = reranked.queries, reranked.gallery
    per_query: dict[str, list[Doubles]] = defaultdict(list)
    first_ranks: list[Integers] = []
    num_ties = 0
    for block in level_ranks(queries, gallery, list(levels.values()), chunk_size, reranked, divided):
        for level, ranks in zip(levels, block, strict=True):
            for name, metric in metrics.items():
                per_query[name if level == FINE else f"{level}/{name}"].append(metric(ranks))
        first_ranks.append(first_positive_rank(block[0]))
        num_ties += block[0].num_ties
    scores = {name: np.concatenate(blocks) for name, blocks in per_query.items()}
    first_positive_ranks = np.concatenate(first_ranks)
    levels[FINE].check_any_positive(first_positive_ranks > 0)
    _check_coarse(scores)
    return Evaluation.from_queries(
        scores,
        protocol=protocol,
        query_indices=query_indices,
        num_gallery=len(gallery),
        num_ties=num_ties,
        first_positive_ranks=first_positive_ranks,
        stage="plain" if rerank is None else rerank.stage.replace("-", ""),
        method=None if rerank is None else repr(rerank),
    )


def _check_coarse(scores: Mapping[str, Doubles]) -> None:
    for name, values in scores.items():
        if np.isnan(values).all():
            raise InputError(f"{name}: no query has another image of its coarse label to find; give a coarser level")
