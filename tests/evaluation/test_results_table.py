import csv
import io
import json

import numpy as np
import pandas as pd
import pytest

from vicinal.data import Table
from vicinal.evaluation import ResultsTable, average_runs, compare_models, evaluate, tabulate
from vicinal.evaluation.results_table import COLUMNS
from vicinal.utils.errors import InputError


def table() -> Table:
    labels = np.append(np.arange(60) % 10, [97, 98])
    return Table(pd.DataFrame({"label": labels, "coarse": labels // 5, "shop": np.arange(62) % 3}))


@pytest.fixture(scope="module")
def results() -> dict[str, ResultsTable]:
    vectors = [
        np.eye(12)[np.minimum(table().labels, 11)] + np.random.default_rng(s).normal(size=(62, 12)) for s in (0, 1)
    ]
    evaluations = {name: evaluate(each, table(), hierarchy=True) for name, each in zip("ab", vectors, strict=True)}
    return {
        "one": evaluations["a"].to_results("a"),
        "groups": tabulate(evaluations["a"], table(), model="a", group_by="label"),
        "several": ResultsTable.concat(each.to_results(name) for name, each in evaluations.items()),
        "compared": compare_models(evaluations, table()),
        "averaged": average_runs(evaluations),
    }


@pytest.mark.parametrize("kind", ["one", "groups", "several", "compared", "averaged"])
def test_every_output_holds_the_whole_frame(results, kind: str) -> None:
    found = results[kind]
    assert found.frame.columns.tolist() == list(COLUMNS)
    assert {name: str(dtype) for name, dtype in found.frame.dtypes.items()} == COLUMNS
    loaded = json.loads(found.to_json())
    assert loaded == json.loads(json.dumps(found.to_dict()))
    assert len(found.to_json().splitlines()) == 8 + len(found.frame)  # one line per row
    pd.testing.assert_frame_equal(pd.DataFrame(loaded["results"]).astype(COLUMNS), found.frame)
    attributes = {"confidence_level": found.confidence_level, "resample_by": found.resample_by}
    assert loaded | attributes | {"baseline": found.baseline} == loaded
    read = pd.read_csv(io.StringIO(found.to_csv()), dtype=COLUMNS)
    pd.testing.assert_frame_equal(read, found.frame, rtol=1e-13)  # pandas 2 reads the last digits less exactly
    assert next(csv.DictReader(io.StringIO(found.to_csv())))["p_value"] == ""


def test_levels_and_names(results) -> None:
    rows = results["one"].overall("a")
    assert rows.loc["coarse/mAP", ["label_level", "metric"]].tolist() == ["coarse", "mAP"]
    assert rows.loc["mAP", ["label_level", "metric"]].tolist() == ["label", "mAP"]
    counts = ["num_queries", "num_without_positive", "num_gallery", "num_ties"]
    assert rows.loc["mAP", counts].tolist() == [62, 2, 62, 0]
    assert rows.loc["mAP", ["model", "stage", "protocol"]].tolist() == ["a", "plain", "leave-one-out"]


def test_the_weakest_groups_come_first_and_every_group_counts_the_same(results) -> None:
    frame = results["groups"].frame
    recalls = frame.query("metric == 'recall@1' and label_level == 'label'").dropna(subset=["group", "value"])
    lines = str(results["groups"]).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("by label"))
    shown = [float(line.split()[2]) for line in lines[start + 2 : -1]]
    assert shown == sorted(shown)
    assert len(shown) == 10
    assert shown[0] == pytest.approx(100 * recalls["value"].min(), abs=0.005)
    assert float(lines[-1].split()[2]) == pytest.approx(100 * recalls["value"].mean(), abs=0.005)


def test_tables_of_other_intervals_are_not_put_together(results) -> None:
    with pytest.raises(InputError, match="use the same resampling for all"):
        ResultsTable.concat([results["one"], results["compared"]])
