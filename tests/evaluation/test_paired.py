"""Differences and p-values: compared with loops over all swaps, and with what they promise."""

import dataclasses
import itertools

import numpy as np
import pytest
import scipy.stats

from tests.evaluation.cases import gapped_scores, scored, table_of
from vicinal.evaluation import Resampling, confidence_intervals, paired_differences, resampling
from vicinal.utils.errors import InputError


def exact_p(first: np.ndarray, second: np.ndarray, units: np.ndarray) -> float:
    """Over all ways to swap the two scores of whole units."""
    both = ~np.isnan(first)
    first, second, units = first[both], second[both], units[both]
    names = np.unique(units)
    measured, num_as_large = abs((second - first).sum()), 0
    for swaps in itertools.product([False, True], repeat=len(names)):
        swapped = np.isin(units, names[list(swaps)])
        a, b = np.where(swapped, second, first), np.where(swapped, first, second)
        num_as_large += abs((b - a).sum()) >= measured - 1e-9
    return num_as_large / 2 ** len(names)


@pytest.mark.parametrize("seed", range(4))
def test_p_is_the_fraction_of_all_swaps(seed: int) -> None:
    labels, per_query = gapped_scores(seed)
    rng = np.random.default_rng(100 + seed)
    others = {name: np.clip(values + rng.normal(0.2, 0.4, len(labels)), 0, 1) for name, values in per_query.items()}
    found = paired_differences(scored(**per_query), scored(**others), table_of(labels))
    for name, values in per_query.items():
        assert found.loc[name, "p_value"] == pytest.approx(exact_p(values, others[name], labels), abs=1e-12)
        assert found.loc[name, "difference"] == pytest.approx(np.nanmean(others[name] - values))


@pytest.mark.parametrize("max_weights", [2**22, 100])
def test_random_swaps_come_near_all_swaps(max_weights: int, monkeypatch) -> None:
    monkeypatch.setattr(resampling, "MAX_WEIGHTS", max_weights)
    rng = np.random.default_rng(7)
    labels, before = np.arange(12), rng.random(12)
    after = before + rng.normal(0.15, 0.3, 12)
    wanted = exact_p(before, after, labels)
    choice = Resampling(num_resamples=4000)
    found = paired_differences(scored(mAP=before), scored(mAP=after), table_of(labels), choice).loc["mAP", "p_value"]
    assert 0.05 < wanted < 0.5
    assert found == pytest.approx(wanted, abs=0.03)
    apart = scored(mAP=np.zeros(12)), scored(mAP=np.ones(12))
    smallest = paired_differences(*apart, table_of(labels), Resampling(num_resamples=10)).loc["mAP", "p_value"]
    assert smallest == 1 / 11  # no p-value of ten permutations can be smaller


def test_the_interval_of_a_difference_is_that_of_the_differences() -> None:
    labels, per_query = gapped_scores(3)
    other, choice = np.random.default_rng(9).random(len(labels)), Resampling(confidence_level=0.8, seed=2)
    other[np.isnan(per_query["mAP"])] = np.nan
    found = paired_differences(scored(mAP=per_query["mAP"]), scored(mAP=other), table_of(labels), choice).loc["mAP"]
    wanted = confidence_intervals(scored(mAP=other - per_query["mAP"]), table_of(labels), choice).loc["mAP"]
    assert (found["difference_low"], found["difference_high"]) == pytest.approx(tuple(wanted), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [20, 100])
def test_coverage_and_p_values_by_simulation(classes: int) -> None:
    """Classes of unequal sizes; the true difference is 0."""
    rng, runs, hits, p_values = np.random.default_rng(classes), 400, 0, []
    for seed in range(runs):
        labels = np.repeat(np.arange(classes), rng.integers(2, 20, classes))
        found = (rng.random(len(labels)) < rng.beta(2, 1, classes)[labels]).astype(float)
        other = found + rng.normal(0, 0.2, classes)[labels] + rng.normal(0, 0.1, len(labels))
        choice = Resampling(num_resamples=400, seed=seed)
        row = paired_differences(scored(mAP=found), scored(mAP=other), table_of(labels), choice).loc["mAP"]
        hits += row["difference_low"] <= 0 <= row["difference_high"]
        p_values.append(row["p_value"])
    assert {20: 0.88, 100: 0.92}[classes] < hits / runs < 0.98  # few classes give narrow intervals
    assert scipy.stats.kstest(p_values, "uniform").pvalue > 0.01
    assert np.mean(np.array(p_values) < 0.05) < 0.08


def test_metrics_of_the_whole_set_have_a_difference_only() -> None:
    labels, per_query = gapped_scores(0)
    first, second = scored(**per_query), scored(**per_query)
    first.metrics["NMI"], second.metrics["NMI"] = 0.5, 0.75
    row = paired_differences(first, second, table_of(labels)).loc["NMI"]
    assert row["difference"] == 0.25
    assert row[["difference_low", "difference_high", "p_value"]].isna().all()


def test_bad_input() -> None:
    labels, per_query = gapped_scores(0)
    evaluation, table = scored(**per_query), table_of(labels)
    for other in (scored(mAP=np.ones(4)), scored(np.roll(np.arange(len(labels)), 1), **per_query)):
        with pytest.raises(InputError, match="have different queries"):
            paired_differences(evaluation, other, table)
    changed = {"mAP": per_query["mAP"].copy()}
    changed["mAP"][~np.isnan(changed["mAP"])] = np.nan
    changed["mAP"][0] = 1.0
    with pytest.raises(InputError, match="only one of the two evaluations scores the query in row"):
        paired_differences(evaluation, scored(**changed), table)
    with pytest.raises(InputError, match="the two evaluations have no metric in common"):
        paired_differences(evaluation, scored(MRR=np.ones(len(labels))), table)
    other = dataclasses.replace(evaluation, protocol="query/gallery")
    with pytest.raises(InputError, match="one evaluation is 'leave-one-out', the other 'query/gallery'; compare two"):
        paired_differences(evaluation, other, table)
    with pytest.raises(InputError, match="resampling classes needs the table"):
        paired_differences(evaluation, evaluation, None)
