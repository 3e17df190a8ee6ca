from __future__ import annotations

import csv
import dataclasses
import json
from io import StringIO

import numpy as np
import pandas as pd
import pytest

from vicinal.data.table import Table
from vicinal.errors import InputError
from vicinal.evaluation import evaluate
from vicinal.evaluation.models_compared import COLUMNS, ModelsCompared, compare_models
from vicinal.evaluation.protocol import Evaluation
from vicinal.evaluation.uncertainty import interval, paired


@pytest.fixture(scope="module")
def table() -> Table:
    return Table(pd.DataFrame({"label": np.random.default_rng(0).integers(0, 20, 150)}))


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
def compared(evaluations: dict[str, Evaluation], table: Table) -> ModelsCompared:
    return compare_models(evaluations, table, draws=300, seed=5)


def test_all_are_held_against_the_first(compared, evaluations, table) -> None:
    assert compared.models == ["old", "new", "best"]
    assert compared.metrics == list(evaluations["old"].metrics)
    assert compared.differences["old"] == {}
    for model in ("new", "best"):
        wanted = paired(evaluations["old"], evaluations[model], table, draws=300, seed=5)
        assert compared.differences[model] == wanted
        assert compared.intervals[model] == interval(evaluations[model], table, draws=300, seed=5)
        assert wanted["mAP"].difference > 0.1


def test_to_dict_is_json(compared: ModelsCompared) -> None:
    loaded = json.loads(json.dumps(compared.to_dict()))
    assert (loaded["by"], loaded["level"], list(loaded["models"])) == ("classes", 0.95, ["old", "new", "best"])
    best, found = loaded["models"]["best"], compared.differences["best"]["mAP"]
    assert best["metrics"] == compared.evaluations["best"].metrics
    assert best["intervals"]["mAP"] == list(compared.intervals["best"]["mAP"])
    assert best["differences"]["mAP"] == {
        "difference": found.difference,
        "interval": list(found.interval),
        "p": found.p,
    }
    assert loaded["models"]["old"]["differences"] == {}


def test_csv_has_a_line_a_metric_and_model(compared: ModelsCompared) -> None:
    header, *rows = csv.reader(StringIO(compared.to_csv()))
    assert tuple(header) == COLUMNS
    assert [row[:2] for row in rows] == [[name, model] for name in compared.metrics for model in compared.models]
    cells = dict(zip(header, rows[2], strict=True))
    found = compared.differences["best"]["recall@1"]
    numbers = [float(cells[name]) for name in COLUMNS[2:]]
    value, ends = compared.evaluations["best"].metrics["recall@1"], compared.intervals["best"]["recall@1"]
    assert numbers == [value, *ends, found.difference, *found.interval, found.p]
    assert rows[0][5:] == ["", "", "", ""]


def test_text_stands_side_by_side(compared: ModelsCompared) -> None:
    head, names, *lines = str(compared).splitlines()
    assert head == "leave-one-out: 150 queries, 150 gallery images; 95 % intervals by classes, values in %"
    assert names.split() == ["old", "new", "less", "old", "best", "less", "old"]
    assert [line.split()[0] for line in lines] == compared.metrics
    value, found = compared.evaluations["new"].metrics["mAP"], compared.differences["new"]["mAP"]
    low, high = found.interval
    line = lines[compared.metrics.index("mAP")]
    assert line.index(f"{100 * value:6.2f}") == names.index("new")
    wanted = f"{100 * found.difference:+6.2f} [{100 * low:+.2f}, {100 * high:+.2f}] p {found.p:.3g}"
    assert line.index(wanted) == names.index("less old")


def test_many_ties_are_told(evaluations, table) -> None:
    models = {"old": evaluations["old"], "collapsed": evaluate(np.ones((150, 3)), table, recall_at=(1, 2))}
    lines = str(compare_models(models, table, draws=10)).splitlines()
    assert lines[1] == f"collapsed: {models['collapsed'].ties:,} positives tied with other images"
    assert models["old"].ties == 0


def test_metrics_of_the_whole_have_differences_but_no_intervals(evaluations, table) -> None:
    two = {
        name: dataclasses.replace(evaluations[name], metrics={**evaluations[name].metrics, "NMI": value})
        for name, value in (("old", 0.5), ("new", 0.75))
    }
    found = compare_models(two, table, draws=10)
    assert found.metrics[-1] == "NMI"
    assert "NMI" not in found.intervals["new"]
    assert str(found).splitlines()[-1].split() == ["NMI", "50.00", "75.00", "+25.00"]
    assert found.to_csv().splitlines()[-1] == "NMI,new,0.75,,,,,,"


def test_only_common_metrics_are_shown(evaluations, table) -> None:
    fewer = dataclasses.replace(
        evaluations["new"],
        metrics={"mAP": evaluations["new"].metrics["mAP"]},
        per_query={"mAP": evaluations["new"].per_query["mAP"]},
    )
    found = compare_models({"a": evaluations["old"], "b": fewer}, table, draws=10)
    assert found.metrics == ["mAP"]
    assert len(found.to_csv().splitlines()) == 3


def test_bad_input(evaluations, table) -> None:
    with pytest.raises(InputError, match="1 models to compare; give at least two"):
        compare_models({"old": evaluations["old"]}, table)
    half = evaluate(np.eye(75), table.take(np.arange(75)))
    with pytest.raises(InputError, match="half against old: the two evaluations have other queries"):
        compare_models({"old": evaluations["old"], "half": half}, table)
