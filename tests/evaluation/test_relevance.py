from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from vicinal import Table
from vicinal.evaluation import Relevance, evaluate, open_set_scores
from vicinal.training.training_data import require_validatable
from vicinal.utils.errors import InputError


def test_relevance() -> None:
    labels = np.array([0, 1, 0, 0, 0, -1, -1])
    groups = np.array([5, 5, 5, 6, -1, -1, -1])
    relevance = Relevance(labels, labels, np.arange(7), groups, groups)
    assert relevance.positives(0).tolist() == [3, 4]
    assert relevance.excluded(0).tolist() == [0, 2]  # row 1 is of the same group but no match: it stays in the way
    assert relevance.positives(4).tolist() == [0, 2, 3]
    assert relevance.excluded(4).tolist() == [4]
    assert relevance.positives(5).tolist() == []
    assert relevance.excluded(5).tolist() == [5]
    assert relevance.label_counts().tolist() == [4, 1, 4, 4, 4, 0, 0]


def test_a_coarse_level_excludes_what_the_fine_one_does() -> None:
    labels, groups = np.array([0, 0, 0, 1, 1, 2]), np.array([5, 5, 6, 5, 5, 5])
    fine = Relevance(labels, labels, np.arange(6), groups, groups)
    coarse = Relevance(labels // 2, labels // 2, exclusions=fine)
    assert fine.positives(0).tolist() == [2]
    assert coarse.positives(0).tolist() == [2, 3, 4]  # of other classes, so that their group does not matter
    assert coarse.excluded(0).tolist() == fine.excluded(0).tolist() == [0, 1]


@pytest.mark.parametrize("nested", [True, False])
def test_all_exclusions_at_once(nested: bool) -> None:
    for seed in range(20):
        check_exclusions(np.random.default_rng(seed), nested)


def check_exclusions(rng: np.random.Generator, nested: bool) -> None:
    """Of random labels and groups, query by query; with `nested`, coarse labels contain the fine ones."""
    labels, groups = rng.integers(-1, 4, 30), rng.integers(-1, 3, 30)
    exclude_self = np.arange(12) + 18 if nested else rng.integers(-1, 18, 12)
    coarse = labels // 2 if nested else rng.integers(-1, 2, 30)
    fine = Relevance(labels[18:], labels, exclude_self, groups[18:], groups)
    for relevance, codes in ((fine, labels), (Relevance(coarse[18:], coarse, exclusions=fine), coarse)):
        queries, rows = np.indices((12, 30))
        is_excluded = relevance.is_excluded(queries, rows)
        of_other_labels = np.zeros((12, 30), dtype=bool)
        of_other_labels[relevance.excluded_other_labels()] = True
        for query in range(12):
            excluded, code = relevance.excluded(query), codes[18 + query]
            assert np.flatnonzero(is_excluded[query]).tolist() == excluded.tolist()
            wanted = excluded[codes[excluded] != code] if code >= 0 and code in codes else excluded[:0]
            assert np.flatnonzero(of_other_labels[query]).tolist() == wanted.tolist()
        assert (np.diff(relevance.excluded_other_labels()[0]) >= 0).all()
    assert not nested or not len(fine.excluded_other_labels()[0])


def test_an_error_names_the_groups_that_exclude_all_matches() -> None:
    vectors = np.random.default_rng(0).normal(size=(20, 8))
    frame = pd.DataFrame({"label": np.arange(20) % 5})
    message = "column group excludes all matches of 20; leave the column out, or add images of other groups"
    for check in (evaluate, open_set_scores):
        with pytest.raises(InputError, match=message):
            check(vectors, Table(frame.assign(group=0)))
        with pytest.raises(InputError, match="needs at least one class with two images"):
            check(vectors[:5], Table(frame[:5].assign(group=0)))
    with pytest.raises(InputError, match="the column group excludes all matches of the 20 queries of the split val"):
        require_validatable(Table(frame.assign(group=0)), "recall@1")
    require_validatable(Table(frame.assign(group=[0] * 19 + [1])), "recall@1")
    require_validatable(Table(frame.assign(group=-1)), "recall@1")
