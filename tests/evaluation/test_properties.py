"""What holds for any embeddings and labels."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.evaluation.cases import brute_force
from tests.retrieval.reranking.rerank_references import lattice
from vicinal.data import Table
from vicinal.evaluation import evaluate, evaluate_arrays
from vicinal.utils.errors import InputError

MORE = ("precision@2", "positives_recall@2", "mAP@2", "MRR")


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(6, 40),
    classes=st.integers(1, 12),
    seed=st.integers(0, 10**6),
    sides=st.booleans(),
    grouped=st.booleans(),
    chunk_size=st.sampled_from([None, 1, 5]),
    kind=st.sampled_from([np.float16, np.float32, np.float64]),
)
def test_equals_brute_force(rows, classes, seed, sides, grouped, chunk_size, kind) -> None:
    rng = np.random.default_rng(seed)
    vectors, labels = lattice(rows, 6, seed), rng.integers(0, classes, rows)
    frame = pd.DataFrame({"label": labels})
    is_query = is_gallery = np.ones(rows, dtype=bool)
    groups = np.full(rows, -1)
    if sides:  # some images are on both sides, some on neither
        is_query, is_gallery = rng.random(rows) < 0.6, rng.random(rows) < 0.7
        is_query[0] = is_gallery[:3] = True
        frame = frame.assign(is_query=is_query, is_gallery=is_gallery)
    if grouped:
        groups = rng.integers(0, 3, rows)
        frame = frame.assign(group=groups)
    wanted, without = brute_force(vectors, labels, is_query, is_gallery, groups, (1, 2))
    if not wanted:
        with pytest.raises(InputError, match="image of its class to find"):
            evaluate(vectors, Table(frame), (1, 2), metrics=MORE, chunk_size=chunk_size)
        return
    names = {"coarse": labels // 2, "coarse_2": labels // 4}  # what is left out is left out at every level
    for column, codes in names.items():
        of_level, _ = brute_force(vectors, labels, is_query, is_gallery, groups, (1, 2), codes)
        wanted |= {f"{column}/{name}": value for name, value in of_level.items()}
    result = evaluate(
        vectors.astype(kind), Table(frame.assign(**names)), (1, 2), metrics=MORE, hierarchy=True, chunk_size=chunk_size
    )
    assert result.metrics == pytest.approx(wanted, rel=1e-12)
    assert (result.num_queries, result.num_gallery) == (is_query.sum(), is_gallery.sum())
    assert result.num_without_positive == without
    assert result.query_indices.tolist() == np.flatnonzero(is_query).tolist()


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(4, 30), classes=st.integers(1, 6), seed=st.integers(0, 10**6))
def test_without_ties_the_order_of_the_table_does_not_matter(rows: int, classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors, labels = rng.standard_normal((rows, 5)), rng.integers(0, classes, rows)
    labels[:2] = 0
    order = rng.permutation(rows)
    first, second = (
        evaluate(
            vectors[rows],
            Table(pd.DataFrame({"label": labels[rows]})),
            recall_at=[1],
            metrics=["MRR", "positives_recall@2"],
        )
        for rows in (np.arange(rows), order)
    )
    if first.num_ties:
        return
    for name, values in first.per_query.items():
        np.testing.assert_array_equal(second.per_query[name], values[order])


@settings(max_examples=20, deadline=None)
@given(
    rows=st.integers(4, 30),
    seed=st.integers(0, 10**6),
    value=st.sampled_from([np.nan, np.inf, -np.inf]),
    kind=st.sampled_from([np.float16, np.float32, np.float64]),
)
def test_a_broken_embedding_is_named_if_it_takes_part(rows: int, seed: int, value: float, kind: type) -> None:
    rng = np.random.default_rng(seed)
    is_query, is_gallery = rng.random(rows) < 0.5, rng.random(rows) < 0.5
    is_query[0] = is_gallery[1] = True
    table = Table(pd.DataFrame({"label": np.zeros(rows), "is_query": is_query, "is_gallery": is_gallery}))
    vectors, broken = rng.standard_normal((rows, 3)).astype(kind), int(rng.integers(2, rows))
    vectors[broken, rng.integers(3)] = value
    if is_query[broken] or is_gallery[broken]:
        with pytest.raises(InputError, match=rf"embedding {broken} holds NaN or infinity; every embedding must be"):
            evaluate(vectors, table, [1])
    else:
        assert evaluate(vectors, table, [1]).metrics["mAP"] == 1


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(6, 30), classes=st.integers(1, 6), seed=st.integers(0, 10**6))
def test_a_gallery_twice_over_finds_the_same_first(rows: int, classes: int, seed: int) -> None:
    """Each image has its copy right beside it: the first positive moves from rank r to 2 r - 1, all fractions stay."""
    vectors, labels = lattice(rows, 6, seed), np.random.default_rng(seed).integers(0, classes, rows)
    labels[:2] = 0
    once = evaluate_arrays(vectors[:2], labels[:2], vectors, labels, recall_at=[1])
    twice = evaluate_arrays(vectors[:2], labels[:2], vectors.repeat(2, axis=0), labels.repeat(2), recall_at=[1])
    assert twice.first_positive_ranks.tolist() == (2 * once.first_positive_ranks - 1).tolist()
    assert twice.metrics["recall@1"] == once.metrics["recall@1"]
    assert twice.metrics["R-precision"] == once.metrics["R-precision"]
    assert twice.num_ties == 2 * once.num_ties


@settings(max_examples=40, deadline=None)
@given(labels=st.lists(st.integers(0, 4), min_size=3, max_size=25), kind=st.sampled_from([np.float16, np.float64]))
def test_all_ties_rank_in_the_order_of_the_table(labels: list[int], kind: type) -> None:
    labels[:2] = [0, 0]
    result = evaluate(np.full((len(labels), 3), 0.3, kind), Table(pd.DataFrame({"label": labels})), [1])
    others = [[other for place, other in enumerate(labels) if place != row] for row in range(len(labels))]
    wanted = [1 + each.index(own) if own in each else 0 for own, each in zip(labels, others, strict=True)]
    assert result.first_positive_ranks.tolist() == wanted
    assert result.num_ties == sum(
        each.count(own) for own, each in zip(labels, others, strict=True) if set(each) != {own}
    )
