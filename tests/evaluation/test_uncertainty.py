"""Intervals and p-values: against loops that draw and swap whole lists of scores, and against what they promise."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from vicinal.data.table import Table
from vicinal.errors import InputError
from vicinal.evaluation import evaluate, uncertainty
from vicinal.evaluation.protocol import Evaluation
from vicinal.evaluation.uncertainty import Interval, interval, over_runs, paired


def scored(rows: np.ndarray | None = None, **per_query: np.ndarray) -> Evaluation:
    """An evaluation of which only the scores of single queries matter."""
    number = len(next(iter(per_query.values())))
    return Evaluation(
        metrics={name: float(np.nanmean(values)) for name, values in per_query.items()},
        protocol="leave-one-out",
        queries=number,
        gallery=number,
        without_positive=0,
        per_query=per_query,
        query_rows=np.arange(number) if rows is None else rows,
    )


def table_of(labels: np.ndarray) -> Table:
    return Table(pd.DataFrame({"label": labels}))


def example(seed: int, classes: int = 9) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Labels of unequal classes in no order, and two scores with gaps; one class has no score at all."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(classes), rng.integers(1, 8, classes)))
    first = rng.random(len(labels))
    first[labels == 3] = np.nan
    second = (rng.random(len(labels)) < 0.5).astype(float)
    second[(labels == 3) | (rng.random(len(labels)) < 0.2)] = np.nan
    return labels, {"mAP": first, "recall@1": second}


@pytest.mark.parametrize("by", ["classes", "queries"])
@pytest.mark.parametrize("level", [0.5, 0.95])
@pytest.mark.parametrize("at_once", [None, 40])
def test_equals_a_loop_over_samples(by: str, level: float, at_once: int | None, monkeypatch) -> None:
    labels, per_query = example(0)
    if at_once:
        monkeypatch.setattr(uncertainty, "WEIGHTS", at_once)
    found = interval(scored(**per_query), table_of(labels), by, level, draws=50, seed=4)
    units = labels if by == "classes" else np.arange(len(labels))
    there = [unit for unit in np.unique(units) if not all(np.isnan(v[units == unit]).all() for v in per_query.values())]
    picks = np.random.default_rng(4).integers(0, len(there), (50, len(there)))
    for name, values in per_query.items():
        means = []
        for sample in picks:
            drawn = np.concatenate([values[units == there[place]] for place in sample])
            means.append(drawn[~np.isnan(drawn)].mean())
        wanted = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
        np.testing.assert_allclose(found[name], wanted, rtol=1e-12)


def test_seeds_decide() -> None:
    labels, per_query = example(1)
    evaluation, table = scored(**per_query), table_of(labels)
    assert interval(evaluation, table, seed=3) == interval(evaluation, table, seed=3)
    assert interval(evaluation, table, seed=3) != interval(evaluation, table, seed=4)
    assert paired(evaluation, evaluation, table, seed=3) == paired(evaluation, evaluation, table, seed=3)


def test_of_many_queries_it_is_the_normal_interval() -> None:
    values = np.random.default_rng(0).random(1000)
    low, high = interval(scored(mAP=values), None, "queries")["mAP"]
    reach = 1.96 * values.std() / len(values) ** 0.5
    assert (low, high) == pytest.approx((values.mean() - reach, values.mean() + reach), abs=0.1 * reach)


def test_classes_hold_the_level_where_queries_do_not() -> None:
    """Scores that differ from class to class: the true mean over classes is 0.5."""
    rng, hits = np.random.default_rng(0), {"classes": 0, "queries": 0}
    labels = np.repeat(np.arange(40), 10)
    for _ in range(100):
        values = rng.random(40)[labels] * 0.9 + 0.1 * rng.random(400)
        for by in hits:
            low, high = interval(scored(mAP=values), table_of(labels), by, 0.9, draws=100)["mAP"]
            hits[by] += low <= 0.5 <= high
    assert 80 <= hits["classes"] <= 97
    assert hits["queries"] < 60


def test_query_rows_say_which_labels_count() -> None:
    """Queries are some rows of the table, in another order."""
    labels, per_query = example(2)
    rows = np.random.default_rng(0).permutation(len(labels))
    padded = np.full(2 * len(labels) + 1, 99)
    padded[2 * rows + 1] = labels
    found = interval(scored(2 * rows + 1, **per_query), table_of(padded))
    assert found == interval(scored(**per_query), table_of(labels))


def test_a_metric_of_the_whole_has_no_interval() -> None:
    labels, per_query = example(0)
    evaluation = scored(**per_query)
    evaluation.metrics["NMI"] = 0.7
    assert set(interval(evaluation, table_of(labels))) == {"mAP", "recall@1"}


def test_of_a_real_evaluation_each_metric_lies_in_its_interval() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 30, 300)
    vectors = rng.standard_normal((30, 8))[labels] + rng.standard_normal((300, 8))
    evaluation = evaluate(vectors, table_of(labels))
    found = interval(evaluation, table_of(labels))
    assert set(found) == set(evaluation.metrics)
    assert all(low < evaluation.metrics[name] < high for name, (low, high) in found.items())


def exact_p(first: np.ndarray, second: np.ndarray, units: np.ndarray) -> float:
    """All ways to swap the two scores of whole units."""
    both = ~np.isnan(first)
    first, second, units = first[both], second[both], units[both]
    names = np.unique(units)
    found, larger = abs((second - first).sum()), 0
    for swaps in itertools.product([False, True], repeat=len(names)):
        swapped = np.isin(units, names[list(swaps)])
        a, b = np.where(swapped, second, first), np.where(swapped, first, second)
        larger += abs((b - a).sum()) >= found - 1e-9
    return larger / 2 ** len(names)


@pytest.mark.parametrize("seed", range(4))
def test_p_is_the_share_of_all_swaps(seed: int) -> None:
    labels, per_query = example(seed)
    rng = np.random.default_rng(100 + seed)
    others = {name: np.clip(values + rng.normal(0.2, 0.4, len(labels)), 0, 1) for name, values in per_query.items()}
    found = paired(scored(**per_query), scored(**others), table_of(labels))
    for name, values in per_query.items():
        assert found[name].p == pytest.approx(exact_p(values, others[name], labels), abs=1e-12)
        assert found[name].difference == pytest.approx(np.nanmean(others[name] - values))
        assert (found[name].first, found[name].second) == pytest.approx((np.nanmean(values), np.nanmean(others[name])))


@pytest.mark.parametrize("at_once", [None, 100])
def test_drawn_swaps_come_near_all_swaps(at_once: int | None, monkeypatch) -> None:
    if at_once:
        monkeypatch.setattr(uncertainty, "WEIGHTS", at_once)
    rng = np.random.default_rng(7)
    labels, before = np.arange(12), rng.random(12)
    after = before + rng.normal(0.15, 0.3, 12)
    wanted = exact_p(before, after, labels)
    found = paired(scored(mAP=before), scored(mAP=after), table_of(labels), draws=4000)["mAP"].p
    assert 0.05 < wanted < 0.5
    assert found == pytest.approx(wanted, abs=0.03)
    least = paired(scored(mAP=np.zeros(12)), scored(mAP=np.ones(12)), table_of(labels), draws=10)["mAP"].p
    assert least == 1 / 11  # no p-value of ten draws can be smaller


def test_the_interval_of_a_difference_is_that_of_the_differences() -> None:
    labels, per_query = example(3)
    other = np.random.default_rng(9).random(len(labels))
    other[np.isnan(per_query["mAP"])] = np.nan
    found = paired(scored(mAP=per_query["mAP"]), scored(mAP=other), table_of(labels), level=0.8, seed=2)["mAP"]
    wanted = interval(scored(mAP=other - per_query["mAP"]), table_of(labels), level=0.8, seed=2)["mAP"]
    assert found.interval == pytest.approx(wanted, rel=1e-12)


def test_swapping_the_models_turns_the_difference_round() -> None:
    labels, per_query = example(3)
    first, second = (scored(mAP=np.nan_to_num(values)) for values in per_query.values())
    one = paired(first, second, table_of(labels))["mAP"]
    other = paired(second, first, table_of(labels))["mAP"]
    assert other.difference == -one.difference
    assert other.interval == pytest.approx((-one.interval.high, -one.interval.low))
    assert other.p == one.p


def test_a_model_is_no_better_than_itself() -> None:
    labels, per_query = example(0)
    found = paired(scored(**per_query), scored(**per_query), table_of(labels))
    assert {(each.difference, each.interval, each.p) for each in found.values()} == {(0.0, Interval(0.0, 0.0), 1.0)}


def test_p_is_even_where_there_is_no_difference() -> None:
    rng, labels = np.random.default_rng(0), np.repeat(np.arange(15), 4)
    values = []
    for number in range(200):  # each with draws of its own, for those of one seed err alike
        shift = rng.normal(0, 0.3, 15)[labels]  # of a class, up or down alike
        before = rng.random(60)
        found = paired(scored(mAP=before), scored(mAP=before + shift), table_of(labels), draws=200, seed=number)
        values.append(found["mAP"].p)
    assert 0.05 < np.mean(np.array(values) < 0.1) < 0.16
    assert np.mean(values) == pytest.approx(0.5, abs=0.07)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [20, 100])
def test_coverage_and_p_values_by_simulation(classes: int) -> None:
    """Classes of unequal sizes, each found with a chance of its own: the true recall is 2/3, the true difference 0."""
    rng, runs, ps = np.random.default_rng(classes), 400, []
    hits = dict.fromkeys(["classes", "queries", "difference"], 0)
    for seed in range(runs):
        labels = np.repeat(np.arange(classes), rng.integers(2, 20, classes))
        found = (rng.random(len(labels)) < rng.beta(2, 1, classes)[labels]).astype(float)
        other = found + rng.normal(0, 0.2, classes)[labels] + rng.normal(0, 0.1, len(labels))
        first, second, table = scored(mAP=found), scored(mAP=other), table_of(labels)
        for by in ("classes", "queries"):
            low, high = interval(first, table, by, draws=400, seed=seed)["mAP"]
            hits[by] += low <= 2 / 3 <= high
        apart = paired(first, second, table, draws=400, seed=seed)["mAP"]
        hits["difference"] += apart.interval.low <= 0 <= apart.interval.high
        ps.append(apart.p)
    least = {20: 0.88, 100: 0.92}[classes]  # of few classes they are somewhat too narrow
    assert all(least < hits[name] / runs < 0.98 for name in ("classes", "difference"))
    assert hits["queries"] / runs < 0.8
    assert scipy.stats.kstest(ps, "uniform").pvalue > 0.01
    assert np.mean(np.array(ps) < 0.05) < 0.08


def test_several_seeds() -> None:
    values = [0.5, 0.52, 0.47, 0.55]
    found = over_runs([{"mAP": value, "recall@1": 1.0} for value in values], level=0.9)
    wanted = scipy.stats.t.interval(0.9, 3, np.mean(values), scipy.stats.sem(values))
    assert found["mAP"].interval == pytest.approx(wanted)
    assert (found["mAP"].mean, found["mAP"].deviation) == pytest.approx((np.mean(values), np.std(values, ddof=1)))
    assert found["recall@1"].interval == (1.0, 1.0)
    assert found["mAP"].runs == 4


def test_bad_input() -> None:
    labels, per_query = example(0)
    evaluation, table = scored(**per_query), table_of(labels)
    for arguments, message in (
        ({"level": 1.0}, r"level is 1\.0; it must be between 0 and 1"),
        ({"level": float("nan")}, "level is nan"),
        ({"level": "0.9"}, r"level is '0\.9'; it must be between 0 and 1"),
        ({"draws": 0}, "draws is 0; it must be a whole number, at least 1"),
        ({"draws": 2.5}, "draws is 2.5"),
        ({"seed": -1}, "seed is -1"),
        ({"by": "images"}, "by is 'images'; it can be classes or queries"),
    ):
        with pytest.raises(InputError, match=message):
            interval(evaluation, table, **arguments)
        with pytest.raises(InputError, match=message):
            paired(evaluation, evaluation, table, **arguments)
    with pytest.raises(InputError, match="but the table has 3; give the one evaluated"):
        interval(evaluation, table_of(labels[:3]))
    with pytest.raises(InputError, match="classes cannot be drawn without a table"):
        interval(evaluation, None)
    with pytest.raises(InputError, match="no column 'label'"):
        interval(evaluation, Table(pd.DataFrame(index=range(len(labels)))))
    with pytest.raises(InputError, match=r"1 of the classes have a score; .* at least two"):
        interval(evaluation, table_of(np.zeros(len(labels), dtype=int)))


def test_other_queries_are_not_compared() -> None:
    labels, per_query = example(0)
    evaluation, table = scored(**per_query), table_of(labels)
    with pytest.raises(InputError, match="have other queries"):
        paired(evaluation, scored(mAP=np.ones(4)), table)
    with pytest.raises(InputError, match="have other queries"):
        paired(evaluation, scored(np.roll(np.arange(len(labels)), 1), **per_query), table)
    changed = {"mAP": per_query["mAP"].copy()}
    changed["mAP"][~np.isnan(changed["mAP"])] = np.nan
    changed["mAP"][0] = 1.0
    with pytest.raises(InputError, match="only one of the two evaluations scores the query in row"):
        paired(evaluation, scored(**changed), table)
    with pytest.raises(InputError, match="the two evaluations have no metric in common"):
        paired(evaluation, scored(MRR=np.ones(len(labels))), table)
    other = dataclasses.replace(evaluation, protocol="query/gallery")
    with pytest.raises(InputError, match="one evaluation is 'leave-one-out', the other 'query/gallery'; compare two"):
        paired(evaluation, other, table)
    with pytest.raises(InputError, match="no scores of single queries"):
        interval(dataclasses.replace(evaluation, per_query={}), table)
    with pytest.raises(InputError, match="1 runs; a deviation takes at least two"):
        over_runs([{"mAP": 0.5}])
    with pytest.raises(InputError, match="run 1 and run 0 do not both have 'NMI'"):
        over_runs([{"mAP": 0.5}, {"mAP": 0.5, "NMI": 0.1}])
