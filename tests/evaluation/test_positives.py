from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tests.evaluation.cases import key_scores
from vicinal.evaluation.counting import positives as module
from vicinal.evaluation.counting.positives import ranked_positives, ranking_keys
from vicinal.evaluation.relevance import Relevance
from vicinal.retrieval.scores import ScoreBuffer, UnitVectors

SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, 0.25, -0.25, 1e-30, -1e-30, 1e-45, -1e-45, 3e38, -3e38]


def test_keys_ascend_in_the_ranking_and_hold_scores() -> None:
    scores = np.repeat(np.array(SPECIAL, dtype=np.float32), 3)
    rows = np.tile([0, 7, 2**31 - 1], len(SPECIAL))
    keys = ranking_keys(scores, rows)
    np.testing.assert_array_equal(np.argsort(keys, kind="stable"), np.lexsort((rows, -scores)))
    np.testing.assert_array_equal(key_scores(keys), scores)
    np.testing.assert_array_equal(keys & 0xFFFFFFFF, rows)


@pytest.mark.parametrize("classes", [1, 3, 40, 500])
def test_scores_are_those_of_the_whole_product(monkeypatch, classes: int) -> None:
    rng = np.random.default_rng(classes)
    array, labels, groups = rng.standard_normal((300, 33)), rng.integers(-1, classes, 300), rng.integers(-1, 3, 300)
    queries, gallery = UnitVectors(array[:170], "query"), UnitVectors(array, "gallery vector")
    relevance = Relevance(labels[:170], labels, np.arange(170), groups[:170], groups)
    scores = ScoreBuffer(170, 300, queries.device).fill(queries.block(0, 170), gallery, 0, 300).numpy()
    for max_pairs, block in product((2**20, 50), (4096, 17)):
        monkeypatch.setattr(module, "MAX_PAIRS", max_pairs)
        monkeypatch.setattr(module, "BLOCK_ROWS", block)
        found = ranked_positives(queries, gallery, relevance, start=20, stop=160)
        for number, query in enumerate(range(20, 160)):
            rows = relevance.positives(query)
            rows = rows[np.lexsort((rows, -scores[query, rows]))]
            first, count = found.first[number], found.counts[number]
            np.testing.assert_array_equal(found.rows[first : first + count], rows)
            np.testing.assert_array_equal(found.scores[first : first + count], scores[query, rows])
