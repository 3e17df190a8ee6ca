from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

from tests.evaluation.cases import clusters, table_of
from vicinal.data.table import Table
from vicinal.evaluation import (
    Evaluation,
    Resampling,
    ResultsTable,
    compare_models,
    compare_reranking,
    confidence_intervals,
    evaluate,
    metrics_by,
    paired_differences,
    tabulate,
)
from vicinal.retrieval import ContextualReranking
from vicinal.utils.errors import InputError

RESAMPLING = Resampling(num_resamples=300, seed=5)
BY_NAME = {"check_index_type": False, "check_exact": True}


@pytest.fixture(scope="module")
def table() -> Table:
    return table_of(np.random.default_rng(0).integers(0, 20, 150))


@pytest.fixture(scope="module")
def evaluations(table: Table) -> dict[str, Evaluation]:
    """Three models, of ever less noise."""
    rng = np.random.default_rng(1)
    centers, noise = rng.standard_normal((20, 6))[table.labels], rng.standard_normal((150, 6))
    return {
        name: evaluate(centers + noise * scale, table, recall_at=(1, 2))
        for name, scale in (("old", 2.0), ("new", 1.0), ("best", 0.5))
    }


@pytest.fixture(scope="module")
def compared(evaluations: dict[str, Evaluation], table: Table) -> ResultsTable:
    return compare_models(evaluations, table, RESAMPLING)


def test_all_models_are_compared_with_the_first(compared, evaluations, table) -> None:
    assert compared.models == ["old", "new", "best"]
    assert (compared.baseline, compared.resample_by, compared.confidence_level) == ("old", "classes", 0.95)
    for model, evaluation in evaluations.items():
        rows = compared.overall(model)
        assert rows["value"].to_dict() == evaluation.metrics
        pd.testing.assert_frame_equal(
            rows[["low", "high"]], confidence_intervals(evaluation, table, RESAMPLING), **BY_NAME
        )
        differences = rows[["difference", "difference_low", "difference_high", "p_value"]]
        if model == "old":
            assert differences.isna().all(axis=None)
        else:
            wanted = paired_differences(evaluations["old"], evaluation, table, RESAMPLING)
            pd.testing.assert_frame_equal(differences, wanted, **BY_NAME)
            assert wanted.loc["mAP", "difference"] > 0.1


def test_two_models_stand_side_by_side(evaluations, table) -> None:
    compared = compare_models({name: evaluations[name] for name in ("old", "new")}, table, RESAMPLING)
    head, intervals, differences, names, *lines = str(compared).splitlines()
    assert head == "leave-one-out: 150 queries, 150 gallery images"
    assert intervals == "95 % confidence intervals in brackets, from resampled classes"
    assert differences == "differences to old in percentage points"
    assert names.split() == ["old", "new", "difference"]
    row = compared.overall("new").loc["mAP"]
    assert [line.split()[0] for line in lines] == compared.overall("new").index.tolist()
    line = lines[-1]
    assert line.index(f"{100 * row['value']:6.2f} % [{100 * row['low']:.2f}, ") == names.index("new")
    low, high = 100 * row["difference_low"], 100 * row["difference_high"]
    wanted = f"{100 * row['difference']:+6.2f} [{low:+.2f}, {high:+.2f}] p {row['p_value']:.3g}"
    assert line.index(wanted) == names.index("difference")


def test_three_models_have_a_row_each(compared: ResultsTable) -> None:
    head, *metrics = str(compared).split("\n\n")
    assert head.splitlines()[-1] == "differences to old in percentage points"
    assert [block.split()[0] for block in metrics] == compared.overall("new").index.tolist()
    names, *lines = metrics[-1].splitlines()
    assert names.split() == ["mAP", "value", "difference"]
    assert [line.split()[0] for line in lines] == ["old", "new", "best"]
    row = compared.overall("best").loc["mAP"]
    assert lines[2].index(f"{100 * row['value']:6.2f} % [{100 * row['low']:.2f}, ") == names.index("value")
    assert lines[2].index(f"{100 * row['difference']:+6.2f} [") == names.index("difference")
    assert len(lines[0]) < names.index("difference")  # the first one has no difference to itself


def test_many_ties_are_told(evaluations, table) -> None:
    models = {"old": evaluations["old"], "collapsed": evaluate(np.ones((150, 3)), table, recall_at=(1, 2))}
    lines = str(compare_models(models, table, Resampling(num_resamples=10))).splitlines()
    assert lines[1] == f"collapsed: {models['collapsed'].num_ties:,} positives tied with other images"
    assert models["old"].num_ties == 0


def test_metrics_of_the_whole_set_have_differences_but_no_intervals(evaluations, table) -> None:
    two = {
        name: dataclasses.replace(evaluations[name], metrics={**evaluations[name].metrics, "NMI": value})
        for name, value in (("old", 0.5), ("new", 0.75))
    }
    found = compare_models(two, table, Resampling(num_resamples=10))
    assert found.overall("new").loc["NMI", ["low", "high", "p_value"]].isna().all()
    assert str(found).splitlines()[-1].split() == ["NMI", "50.00", "%", "75.00", "%", "+25.00"]


def test_only_common_metrics_are_compared(evaluations, table) -> None:
    fewer = dataclasses.replace(
        evaluations["new"],
        metrics={"mAP": evaluations["new"].metrics["mAP"]},
        per_query={"mAP": evaluations["new"].per_query["mAP"]},
    )
    found = compare_models({"a": evaluations["old"], "b": fewer}, table, Resampling(num_resamples=10))
    assert found.frame[["model", "metric"]].to_numpy().tolist() == [["a", "mAP"], ["b", "mAP"]]


def test_reranking_is_compared_with_the_plain_ranking() -> None:
    vectors, labels = clusters(100, 12, seed=5)
    table, method = table_of(labels), ContextualReranking(k=6, beta=0.5)
    plain, reranked = (evaluate(vectors, table, (1, 3), rerank=each) for each in (None, method))
    found = compare_reranking(plain, reranked, model="m")
    assert found.frame["stage"].unique().tolist() == ["plain", "reranked"]
    before, after = (found.frame[found.frame["stage"] == stage] for stage in ("plain", "reranked"))
    assert before["value"].tolist() == list(plain.metrics.values())
    assert after["value"].tolist() == list(reranked.metrics.values())
    np.testing.assert_allclose(after["difference"], after["value"].to_numpy() - before["value"].to_numpy(), atol=1e-15)
    assert set(after["method"]) == {repr(method)}
    assert before["method"].isna().all()
    assert found.frame[["low", "p_value"]].isna().all(axis=None)
    lines = str(found).splitlines()
    assert lines[1] == "reranked: ContextualReranking(k=6, beta=0.5, epsilon=0.0)"
    values = [100 * row["value"] for row in (before.iloc[-1], after.iloc[-1])]
    assert lines[-1].split() == [
        "mAP",
        f"{values[0]:.2f}",
        "%",
        f"{values[1]:.2f}",
        "%",
        f"{values[1] - values[0]:+.2f}",
    ]
    tested = compare_reranking(plain, reranked, table, resampling=RESAMPLING)
    wanted = paired_differences(plain, reranked, table, RESAMPLING)
    assert tested.frame["p_value"].dropna().tolist() == wanted["p_value"].tolist()
    assert (tested.frame["low"] <= tested.frame["value"]).all()


def test_one_evaluation_with_intervals_and_groups(evaluations, table) -> None:
    found = tabulate(evaluations["new"], table, model="new", resampling=RESAMPLING, group_by="label")
    rows = found.overall("new")
    pd.testing.assert_frame_equal(
        rows[["low", "high"]], confidence_intervals(evaluations["new"], table, RESAMPLING), **BY_NAME
    )
    groups = found.frame[found.frame["group"].notna()]
    assert set(groups["group_by"]) == {"label"}
    for group, wanted in metrics_by(evaluations["new"], table).iterrows():
        of_group = groups[groups["group"] == str(group)].set_index("metric")
        assert of_group["value"].to_dict() == wanted.drop(["num_queries", "num_without_positive"]).to_dict()
        assert set(of_group["num_queries"]) == {wanted["num_queries"]}
    assert groups[["low", "num_ties"]].isna().all(axis=None)


def test_bad_input(evaluations, table) -> None:
    with pytest.raises(InputError, match="1 models to compare; give at least two"):
        compare_models({"old": evaluations["old"]}, table)
    half = evaluate(np.eye(75), table.take(np.arange(75)))
    with pytest.raises(InputError, match="half against old: the two evaluations have other queries"):
        compare_models({"old": evaluations["old"], "half": half}, table)
    with pytest.raises(InputError, match="groups by shop need the table"):
        tabulate(half, group_by="shop")
