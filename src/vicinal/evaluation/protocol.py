"""Evaluation of embeddings by a table of labels: leave-one-out, or queries against a gallery."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from vicinal.data.columns import is_coarse_column
from vicinal.data.table import Table
from vicinal.evaluation.metrics import Metric, first_positive_rank, metrics_by_name
from vicinal.evaluation.ranking import level_ranks
from vicinal.evaluation.relevance import Relevance, group_codes
from vicinal.evaluation.result import Evaluation
from vicinal.retrieval.query_gallery import QueryGallery
from vicinal.retrieval.reranking.base import Reranking
from vicinal.retrieval.scores import Array, UnitVectors, check_chunk_size, check_rows, check_same_dim
from vicinal.utils.arrays import Doubles, Integers
from vicinal.utils.errors import InputError

LEAVE_ONE_OUT, QUERY_GALLERY = "leave-one-out", "query/gallery"
OTHER_GROUPS = ", other groups"  # where images of the query's own class and group are left out
FINE = ""  # the name of the level of the labels; coarse levels are named by their column


def evaluate(
    embeddings: Array,
    table: Table,
    recall_at: Sequence[int] | None = None,
    *,
    metrics: Sequence[str] = (),
    hierarchy: bool = False,
    rerank: Reranking | None = None,
    chunk_size: int | None = None,
    divided: bool = False,
    gallery_embeddings: Array | None = None,
) -> Evaluation:
    """Measure how well images of one class find each other.

    With the columns `is_query` and `is_gallery`, the queries search the gallery, and an image that is both, in one row
    or by its path in two, is excluded from its own ranking. Without them every image searches all others
    (leave-one-out). With a column `group`, images of the query's own class and group are excluded from its ranking; a
    negative integer is for no group. A negative label is a class like any other. Queries without a positive count in no
    metric; their number is reported.

    Args:
        embeddings: float [rows, dim], compared by cosine similarity; equal ones rank in the order of the table.
        table: one row per embedding, with labels.
        recall_at: the k of each recall@k; None: 1, 2, 4 and 8, as far as the gallery is large enough.
        metrics: names of further metrics, such as `precision@10`, `positives_recall@10` (the fraction of the positives
            among the first 10, Eq. (1) of RS@k), `mAP@1000` (divided by min(k, R)) or `MRR`;
            :mod:`~vicinal.evaluation.metrics` defines them.
        hierarchy: whether each coarse level is scored too. Its positives are the images with the same `coarse`,
            `coarse_2`, ... in the same rankings (Table 9 of the paper of the contextual loss: fine, mid, coarse). The
            only image of its class counts at the levels where others share its coarse label.
        rerank: a method such as `ContextualReranking()`, by which every ranking is re-ranked first, as a whole. Images
            that are excluded from a ranking by their group may still be neighbors by which others are re-ranked, since
            re-ranking sees no labels.
        chunk_size: number of queries per tile; by default their scores take about 64 MB. Metrics do not depend
            on it.
        divided: whether the processes of `torch.distributed`, which all call this function, divide the work. Each gets
            the whole result, which is that of one process to the last digit. A re-ranking is computed by each.
        gallery_embeddings: float [n, dim], the embeddings of the gallery side, such as those of an old model; None:
            those of the queries.

    Raises:
        InputError: numbers of rows differ, no labels, NaN or infinity in an embedding, an invalid k or chunk size, an
            unknown metric, no query with a positive, no coarse labels where they are asked for, or a re-ranking
            that needs more neighbors than there are.

    Example:
        >>> import pandas as pd
        >>> table = Table(pd.DataFrame({"label": ["cat", "cat", "dog", "dog"]}))
        >>> embeddings = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> evaluate(embeddings, table, recall_at=[1], metrics=["MRR"]).metrics
        {'recall@1': 1.0, 'mAP@R': 1.0, 'R-precision': 1.0, 'mAP': 1.0, 'MRR': 1.0}
    """
    check_rows(embeddings, table)
    is_split = _has_queries_and_gallery(table)
    query_rows, gallery_rows = query_gallery_rows(table)
    queries = gallery = UnitVectors(embeddings, "embedding", query_rows if is_split else None)
    is_same = gallery_embeddings is None or gallery_embeddings is embeddings
    if is_split or not is_same:
        gallery_source = embeddings if gallery_embeddings is None else gallery_embeddings
        check_rows(gallery_source, table)
        name = "embedding" if is_same else "gallery vector"
        gallery = UnitVectors(gallery_source, name, gallery_rows if is_split else None, device=queries.device)
    exclude_self, groups = own_gallery_rows(table, query_rows, gallery_rows), group_codes(table)
    fine = Relevance(
        table.labels[query_rows],
        table.labels[gallery_rows],
        exclude_self=exclude_self,
        query_groups=groups[query_rows],
        gallery_groups=groups[gallery_rows],
    )
    return score_queries(
        QueryGallery(queries, gallery, exclude_self, chunk_size),
        {FINE: fine} | (coarse_relevances(table, fine, query_rows, gallery_rows) if hierarchy else {}),
        metrics_by_name(recall_at, metrics, max_k=len(gallery_rows) - (not is_split)),
        protocol=(QUERY_GALLERY if is_split else LEAVE_ONE_OUT) + (OTHER_GROUPS if (groups >= 0).any() else ""),
        query_indices=query_rows,
        rerank=rerank,
        chunk_size=chunk_size,
        divided=divided,
    )


def query_gallery_rows(table: Table) -> tuple[Integers, Integers]:
    """The rows of the queries and those of the gallery images of a table; both are all rows without such columns.

    Raises:
        InputError: the table has one of the columns `is_query` and `is_gallery` only, or no query or gallery image.

    Example:
        >>> import pandas as pd
        >>> query_gallery_rows(Table(pd.DataFrame({"is_query": [True, False], "is_gallery": [True, True]})))
        (array([0]), array([0, 1]))
    """
    if not _has_queries_and_gallery(table):
        return np.arange(len(table)), np.arange(len(table))
    rows = [np.flatnonzero(table.frame[column].to_numpy(dtype=bool)) for column in ("is_query", "is_gallery")]
    for selected, column in zip(rows, ("is_query", "is_gallery"), strict=True):
        if not len(selected):
            raise InputError(f"the table has no row with {column} true; there must be at least one")
    return rows[0], rows[1]


def count_noisy_labels(table: Table) -> tuple[int, int]:
    """The number of evaluated labels that were made noisy on purpose, and the number of evaluated labels.

    Noisy labels are those of the rows whose column `noisy_label` is true, as after
    :func:`~vicinal.data.label_noise.random_labels`.

    Raises:
        InputError: as :func:`query_gallery_rows`.

    Example:
        >>> import pandas as pd
        >>> count_noisy_labels(Table(pd.DataFrame({"label": ["a", "a", "b"], "noisy_label": [True, False, False]})))
        (1, 3)
    """
    rows = np.union1d(*query_gallery_rows(table))
    if not table.has("noisy_label"):
        return 0, len(rows)
    return int(table.frame["noisy_label"].to_numpy(dtype=bool)[rows].sum()), len(rows)


def _has_queries_and_gallery(table: Table) -> bool:
    if table.has("is_query") != table.has("is_gallery"):
        present, missing = ("is_query", "is_gallery") if table.has("is_query") else ("is_gallery", "is_query")
        raise InputError(f"the table has a column {present} but no {missing}; give both or neither")
    return table.has("is_query")


def own_gallery_rows(table: Table, query_rows: Integers, gallery_rows: Integers) -> Integers:
    """The gallery row of each query's own image, by its row or else by its path and box; -1 if there is none."""
    positions = np.full(len(table), -1)
    positions[gallery_rows] = np.arange(len(gallery_rows))
    own_rows = positions[query_rows]
    is_unknown = own_rows < 0
    if is_unknown.any() and table.has("path"):
        keys = table.image_keys
        by_key = {keys[row]: position for position, row in reversed([*enumerate(gallery_rows.tolist())])}
        own_rows[is_unknown] = [by_key.get(keys[row], -1) for row in query_rows[is_unknown].tolist()]
    return own_rows


def coarse_columns(table: Table) -> list[str]:
    """The columns of coarse labels, from the finest to the coarsest: `coarse`, `coarse_2`, ...

    Example:
        >>> import pandas as pd
        >>> coarse_columns(Table(pd.DataFrame({"label": [0], "coarse_10": [0], "coarse_2": [0], "coarse": [0]})))
        ['coarse', 'coarse_2', 'coarse_10']
    """
    columns = [str(column) for column in table.frame.columns if is_coarse_column(str(column))]
    return sorted(columns, key=lambda column: int(column.partition("_")[2] or 1))


def coarse_relevances(
    table: Table, fine: Relevance, query_rows: Integers, gallery_rows: Integers
) -> dict[str, Relevance]:
    """The relevance at each coarse level, from the finest to the coarsest, in the rankings of the fine level."""
    columns = coarse_columns(table)
    if not columns:
        available = ", ".join(table.frame.columns)
        raise InputError(f"the table has no column 'coarse' of coarse labels; its columns are {available}")
    codes = {column: table.codes(column) for column in columns}
    return {
        column: Relevance(codes[column][query_rows], codes[column][gallery_rows], exclusions=fine) for column in columns
    }


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
    """Compute every metric of every query at every level of labels, that of the labels (:data:`FINE`) first.

    `query_indices` are the rows of the queries in the evaluated table.
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
    for name, values in scores.items():
        if np.isnan(values).all():
            raise InputError(f"{name}: no query has another image of its coarse label to find; give a coarser level")
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
