from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from tests.evaluation.cases import scored
from vicinal.evaluation import average_runs, summarize_runs
from vicinal.utils.errors import InputError

VALUES = [0.5, 0.52, 0.47, 0.55]


def test_mean_std_and_interval() -> None:
    found = summarize_runs([{"mAP": value, "recall@1": 1.0} for value in VALUES], confidence_level=0.9)
    wanted = scipy.stats.t.interval(0.9, 3, np.mean(VALUES), scipy.stats.sem(VALUES))
    row = found.loc["mAP"]
    assert (row["low"], row["high"]) == pytest.approx(wanted)
    assert (row["value"], row["std"]) == pytest.approx((np.mean(VALUES), np.std(VALUES, ddof=1)))
    assert found.loc["recall@1", ["low", "high"]].tolist() == [1.0, 1.0]
    assert found["num_repeats"].tolist() == [4, 4]


def test_bad_input() -> None:
    with pytest.raises(InputError, match="1 runs; a standard deviation needs at least two"):
        summarize_runs([{"mAP": 0.5}])
    with pytest.raises(InputError, match="run 1 and run 0 do not both have 'NMI'"):
        summarize_runs([{"mAP": 0.5}, {"mAP": 0.5, "NMI": 0.1}])
    with pytest.raises(InputError, match="confidence_level = 95 is invalid"):
        average_runs({"a": scored(mAP=np.ones(2)), "b": scored(mAP=np.ones(2))}, 95)
