"""Confidence intervals: compared with loops that resample whole lists of scores, and with what they promise."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tests.evaluation.cases import gapped_scores, scored, table_of
from vicinal.data import Table
from vicinal.evaluation import Resampling, confidence_intervals, resampling
from vicinal.utils.errors import InputError


@pytest.mark.parametrize("resample_by", ["classes", "queries"])
@pytest.mark.parametrize("level", [0.5, 0.95])
@pytest.mark.parametrize("max_weights", [2**22, 40])
def test_equals_a_loop_over_samples(resample_by: str, level: float, max_weights: int, monkeypatch) -> None:
    labels, per_query = gapped_scores(0)
    monkeypatch.setattr(resampling, "MAX_WEIGHTS", max_weights)
    found = confidence_intervals(scored(**per_query), table_of(labels), Resampling(resample_by, level, 50, 4))
    units = labels if resample_by == "classes" else np.arange(len(labels))
    there = [unit for unit in np.unique(units) if not all(np.isnan(v[units == unit]).all() for v in per_query.values())]
    picks = np.random.default_rng(4).integers(0, len(there), (50, len(there)))
    assert found.index.tolist() == list(per_query)
    for name, values in per_query.items():
        means = []
        for sample in picks:
            resampled = np.concatenate([values[units == there[number]] for number in sample])
            means.append(resampled[~np.isnan(resampled)].mean())
        wanted = np.quantile(means, wanted_tails(np.array(means), [values[units == unit] for unit in there], level))
        np.testing.assert_allclose(found.loc[name, ["low", "high"]].astype(float), wanted, rtol=1e-12)


def wanted_tails(means: np.ndarray, units: list[np.ndarray], level: float) -> np.ndarray:
    """Those of BCa, with Student's t in place of the normal distribution and as many units as have a score."""
    units = [scores[~np.isnan(scores)] for scores in units if not np.isnan(scores).all()]
    mean = np.concatenate(units).mean()
    without = np.array([np.concatenate(units[:left] + units[left + 1 :]).mean() for left in range(len(units))])
    acceleration = stats.skew(without) * -np.sqrt(len(units)) / (6 * len(units))
    bias = stats.norm.ppf(np.mean([0.5 if abs(each - mean) < 1e-12 else float(each < mean) for each in means]))
    widened = np.sqrt(len(units) / (len(units) - 1)) * stats.t.ppf([(1 - level) / 2, (1 + level) / 2], len(units) - 1)
    return stats.norm.cdf(bias + (bias + widened) / (1 - acceleration * (bias + widened)))


@pytest.mark.slow
@pytest.mark.parametrize("classes", [20, 100])
def test_coverage_by_simulation(classes: int) -> None:
    """Classes of unequal sizes, each found with a probability of its own: the true recall is 2/3."""
    rng, runs, hits = np.random.default_rng(classes), 400, {"classes": 0, "queries": 0}
    for seed in range(runs):
        labels = np.repeat(np.arange(classes), rng.integers(2, 20, classes))
        found = scored(mAP=(rng.random(len(labels)) < rng.beta(2, 1, classes)[labels]).astype(float))
        for resample_by in hits:
            choice = Resampling(resample_by, num_resamples=400, seed=seed)
            low, high = confidence_intervals(found, table_of(labels), choice).loc["mAP"]
            hits[resample_by] += low <= 2 / 3 <= high
    assert {20: 0.88, 100: 0.92}[classes] < hits["classes"] / runs < 0.98  # few classes give narrow intervals
    assert hits["queries"] / runs < 0.8


def test_bad_input() -> None:
    labels, per_query = gapped_scores(0)
    evaluation = scored(**per_query)
    with pytest.raises(InputError, match="but the table has 3 rows; give the one evaluated"):
        confidence_intervals(evaluation, table_of(labels[:3]))
    with pytest.raises(InputError, match="resampling classes needs the table that was evaluated"):
        confidence_intervals(evaluation, None)
    with pytest.raises(InputError, match="no column 'label'"):
        confidence_intervals(evaluation, Table(pd.DataFrame(index=range(len(labels)))))
    with pytest.raises(InputError, match=r"1 of the classes have a score; .* at least two"):
        confidence_intervals(evaluation, table_of(np.zeros(len(labels), dtype=int)))
    with pytest.raises(InputError, match="confidence intervals need per-query scores"):
        confidence_intervals(dataclasses.replace(evaluation, per_query={}), table_of(labels))


def test_bad_settings() -> None:
    for arguments, message in (
        ({"confidence_level": 1.0}, r"confidence_level = 1\.0 is invalid; use one between 0 and 1"),
        ({"confidence_level": float("nan")}, "confidence_level = nan is invalid"),
        ({"confidence_level": "0.9"}, r"confidence_level = '0\.9' is invalid"),
        ({"num_resamples": 0}, "num_resamples = 0 is invalid; use an integer from 1 up"),
        ({"num_resamples": 2.5}, r"num_resamples = 2\.5 is invalid"),
        ({"seed": -1}, "seed = -1 is invalid; use an integer from 0 up"),
        ({"resample_by": "images"}, "resample_by = 'images' is invalid; use classes or queries"),
    ):
        with pytest.raises(InputError, match=message):
            Resampling(**arguments)
