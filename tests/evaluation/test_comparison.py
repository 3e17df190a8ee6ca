import numpy as np
import pandas as pd
import pytest
import scipy.stats

from tests.evaluation.cases import scored, table_of
from tests.refusals import refused_call
from vicinal.data import Table
from vicinal.evaluation import (
    Evaluation,
    Resampling,
    ResultsTable,
    average_runs,
    compare_models,
    confidence_intervals,
    evaluate,
    paired_differences,
    summarize_runs,
    tabulate,
)
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


def test_bad_input(evaluations, table) -> None:
    refused_call("1 models to compare; give at least two", compare_models, {"old": evaluations["old"]}, table)
    half = evaluate(np.eye(75), table.take(np.arange(75)))
    with pytest.raises(InputError, match="half against old: the two evaluations have different queries"):
        compare_models({"old": evaluations["old"], "half": half}, table)
    refused_call("groups by shop need the table", tabulate, half, group_by="shop")


VALUES = [0.5, 0.52, 0.47, 0.55]


def test_mean_std_and_interval() -> None:
    found = summarize_runs([{"mAP": value, "recall@1": 1.0} for value in VALUES], confidence_level=0.9)
    wanted = scipy.stats.t.interval(0.9, 3, np.mean(VALUES), scipy.stats.sem(VALUES))
    row = found.loc["mAP"]
    assert (row["low"], row["high"]) == pytest.approx(wanted)
    assert (row["value"], row["std"]) == pytest.approx((np.mean(VALUES), np.std(VALUES, ddof=1)))
    assert found.loc["recall@1", ["low", "high"]].tolist() == [1.0, 1.0]
    assert found["num_repeats"].tolist() == [4, 4]


def test_bad_runs() -> None:
    refused_call("1 runs; a standard deviation needs at least two", summarize_runs, [{"mAP": 0.5}])
    refused_call("run 1 and run 0 do not both have 'NMI'", summarize_runs, [{"mAP": 0.5}, {"mAP": 0.5, "NMI": 0.1}])
    with pytest.raises(InputError, match="confidence_level = 95 is invalid"):
        average_runs({"a": scored(mAP=np.ones(2)), "b": scored(mAP=np.ones(2))}, 95)
