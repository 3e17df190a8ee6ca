from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.evaluation.cases import clusters
from vicinal.data.table import Table
from vicinal.evaluation import Evaluation, evaluate
from vicinal.utils.errors import InputError


def test_cmc_is_recall_at_every_k() -> None:
    vectors, labels = clusters(50, 9)
    labels[7] = 99  # without a positive
    result = evaluate(vectors, Table(pd.DataFrame({"label": labels})), recall_at=range(1, 50))
    wanted = [result.metrics[f"recall@{k}"] for k in range(1, 50)]
    np.testing.assert_allclose(result.cmc(49), wanted, rtol=1e-12)
    assert result.cmc(3).tolist() == result.cmc(49)[:3].tolist()
    assert result.first_positive_ranks[7] == 0
    for max_k in (0, 51):
        with pytest.raises(InputError, match=f"max_k = {max_k} is out of range; use 1 to 50"):
            result.cmc(max_k)


def test_an_evaluation_without_ranks_has_no_cmc() -> None:
    bare = Evaluation({"mAP": 1.0}, "other", 1, 5, 0, {"mAP": np.ones(1)}, np.arange(1))
    with pytest.raises(InputError, match="first_positive_ranks is empty"):
        bare.cmc(3)
    with pytest.raises(InputError, match=r"max_k = 1\.5 is out of range"):
        bare.cmc(1.5)  # type: ignore[arg-type]
