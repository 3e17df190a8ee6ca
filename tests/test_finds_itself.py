"""Every vector that was indexed is its own first match, with a similarity of 1, in every kind of index."""

import numpy as np
import pandas as pd
import pytest

from vicinal import Index, Table

SLOW_KINDS = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("hnsw", "ivfpq")]
NUM_VECTORS = 10_000  # in the index of each kind: ivfpq learns from so many


@pytest.mark.parametrize("kind", ["exact", "sq8", "rabitq", "binary", *SLOW_KINDS])
def test_each_kind_of_index(kind: str) -> None:
    """Twelve vectors are so near each other that no kind with codes tells all of them apart without rescoring."""
    vectors = np.random.default_rng(1).standard_normal((NUM_VECTORS, 64)).astype(np.float32)
    vectors[:12] = vectors[0] + 0.03 * vectors[:12]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    table = Table(pd.DataFrame({"path": [f"{number}.png" for number in range(NUM_VECTORS)]}))
    found = Index.build(vectors, table, kind).search(vectors[:12], 1)
    assert found.ids[:, 0].tolist() == list(range(12))
    assert found.scores.min() >= 0.999
