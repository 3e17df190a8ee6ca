from __future__ import annotations

import numpy as np
import pandas as pd

from vicinal.analysis import label_errors, query_neighbors
from vicinal.data import Table


def test_errors_are_those_of_the_definition_most_similar_first() -> None:
    """Three clusters, four labels exchanged; found by loops over all similarities."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 12)
    vectors = np.eye(3)[labels] + 0.15 * rng.standard_normal((36, 3))
    given = labels.copy()
    given[[2, 15, 20, 30]] = [1, 2, 0, 0]
    found = label_errors(query_neighbors(vectors, Table(pd.DataFrame({"label": given})), k=10), num_votes=5)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    expected = []
    for query in range(36):
        scores = unit[query] @ unit.T
        nearest = sorted(set(range(36)) - {query}, key=lambda row: -scores[row])[:5]
        voted = {int(given[row]) for row in nearest}
        if len(voted) == 1 and voted != {int(given[query])}:
            expected.append((query, given[query], voted.pop(), np.mean(scores[nearest])))
    expected.sort(key=lambda each: -each[3])
    assert len(expected) >= 2
    assert found["row"].tolist() == [query for query, *_ in expected]
    assert found["label"].tolist() == [label for _, label, *_ in expected]
    assert found["suggested_label"].tolist() == [suggested for *_, suggested, _ in expected]
    np.testing.assert_allclose(found["similarity"], [similarity for *_, similarity in expected], rtol=1e-5)
