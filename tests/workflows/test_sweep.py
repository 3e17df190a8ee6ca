"""A grid of settings: its cells and seeds, its table and its picture; with runs that are made up."""

import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image
from scipy.stats import ttest_rel

from tests.refusals import refused_call
from tests.workflows.studies import MadeUp
from vicinal.data import Table
from vicinal.workflows import SweepSettings, sweep
from vicinal.workflows.tuning.sweep import SweepCell, SweepResult

pytestmark = pytest.mark.usefixtures("quick_recipes")
GRID = ("--grid.optimizer.lr=[0.01, 0.11]", "--grid.model.dim=[8, 16, 32]")


def scores(config: dict[str, Any]) -> list[float]:
    return [0.0, 0.5 - config["optimizer"]["lr"] + config["model"]["dim"] / 100 + config["seed"] / 50]


def run(recipe: Path, start: MadeUp, *words: str, **options: Any) -> SweepResult:
    settings = SweepSettings(**options)
    return sweep(recipe, "study", settings, words or GRID, start=start)


def test_every_cell_is_trained_and_evaluated_with_every_seed(study_recipe: Path) -> None:
    start = MadeUp(scores)
    result = run(study_recipe, start, seeds=2)
    assert len(start.names()) == len(start.names("evaluate")) == 12
    assert {config["seed"] for config in start.configs.values()} == {0, 1}
    table = Path("study/tables/all.parquet")
    assert {config["data"]["source"] for config in start.configs.values()} == {str(table.resolve())}
    assert Table.from_parquet(table).splits == ["train", "test"]
    frame = result.to_frame()
    assert frame[["optimizer.lr", "model.dim"]].to_numpy().tolist() == [
        [0.01, 8], [0.01, 16], [0.01, 32], [0.11, 8], [0.11, 16], [0.11, 32],
    ]  # fmt: skip
    assert frame["recall@1"].tolist() == pytest.approx([0.58, 0.66, 0.82, 0.48, 0.56, 0.72])
    assert frame["recall@1 std"].tolist() == pytest.approx([0.02 / 2**0.5] * 6)
    assert frame["num_seeds"].tolist() == [2] * 6
    assert str(result).splitlines()[:3] == [
        "mean ± standard deviation over 2 seeds, in %",
        "optimizer.lr   model.dim   recall@1       recall@1 - first [95 %]",
        "0.01           8           58.00 ± 1.41",
    ]
    first, second, third = (
        SweepCell({"lr": lr}, {seed: {"mAP": value} for seed, value in values.items()})
        for lr, values in ((1, {0: 0.5, 1: 0.6, 2: 0.7}), (2, {0: 0.6, 1: 0.6, 2: 0.9, 3: 0.1}), (3, {2: 0.1, 3: 0.2}))
    )
    test = ttest_rel((0.6, 0.6, 0.9), (0.5, 0.6, 0.7)).confidence_interval()
    assert second.difference(first, "mAP") == pytest.approx((0.1, *test))  # over the seeds that both have
    assert third.difference(first, "mAP") is None
    pd.testing.assert_frame_equal(pd.read_csv(io.StringIO(result.to_csv())), frame)
    cell = json.loads(json.dumps(result.to_dict()))["cells"][0]
    assert cell["metrics"] == {"0": {"recall@1": pytest.approx(0.57)}, "1": {"recall@1": pytest.approx(0.59)}}
    assert Image.open("study/sweep.png").width > 500
    assert not list(Path("study/cells").rglob("*.pt"))  # the models alone are kept


@pytest.mark.slow
def test_what_is_there_is_not_done_again(study_recipe: Path) -> None:
    first = run(study_recipe, MadeUp(scores), "--grid.optimizer.lr=[0.01, 0.11]", "--model.dim=8")
    start = MadeUp(scores)
    assert sweep(None, "study", SweepSettings(), start=start) == first
    assert not start.started
    sweep(None, "study", SweepSettings(seeds=2), start=start)
    assert start.names() == ["cells/000_1", "cells/001_1"]


@pytest.mark.slow
def test_a_cell_that_fails_fails_alone_and_is_tried_again_by_the_next_command(study_recipe: Path) -> None:
    def failing(config: dict[str, Any]) -> list[float]:
        if config["model"]["dim"] == 16:
            raise ValueError("lack of memory")
        return scores(config)

    result = run(study_recipe, MadeUp(failing))
    assert result.failures == ["lack of memory", "lack of memory"]
    assert result.to_frame()["recall@1"].isna().tolist() == [False, True, False] * 2
    assert str(result).splitlines()[3] == "0.01           16          –          failed: lack of memory"
    cells = [SweepCell({"lr": 0.1 * number}, {seed: {"mAP": 0.5} for seed in range(number)}) for number in (1, 2)]
    one = SweepResult(("lr",), tuple(cells), "mAP")
    assert str(one).splitlines()[2].endswith("1 seed")
    assert result.to_dict()["cells"][1]["mean"] == {"recall@1": None}
    start = MadeUp(scores)
    assert not run(study_recipe, start).failures
    assert start.names() == ["cells/001_0", "cells/004_0"]


def test_a_cell_that_cannot_be_trained_is_said_before_the_start(study_recipe: Path, monkeypatch) -> None:
    monkeypatch.undo()  # each recipe is checked
    monkeypatch.chdir(study_recipe.parent)
    start = MadeUp()
    refused_call("the cell batch_size = 16: .*classes", run, study_recipe, start, "--grid.batch_size=[4, 16]")
    refused_call("validation.metric = recall@0", run, study_recipe, start, *GRID, "--validation.metric=recall@0")
    assert not start.started
    assert not Path("study").exists()


def test_another_verb_is_refused(study_recipe: Path) -> None:
    run(study_recipe, MadeUp(scores), "--grid.optimizer.lr=[0.01]")
    from vicinal.workflows import tune

    refused_call("study holds a study of vicinal sweep; give another --out", tune, None, "study")


def test_one_or_two_settings_of_any_kind_are_drawn_and_three_are_not(study_recipe: Path) -> None:
    for name, words in (
        ("line", ["model.dim=[8, 512]"]),
        ("names", ["loss=[TripletLoss, MarginLoss]", "transform.scale=[[0.1, 1.0], [0.5, 1.0]]"]),
        ("three", ["optimizer.lr=[0.1]", "model.dim=[8]", "epochs=[3]"]),
    ):
        run(study_recipe, MadeUp(lambda config: [0.1, 0.2]), *(f"--grid.{each}" for each in words))
        assert Path("study/sweep.png").exists() == (name != "three"), name
        Path("study").rename(name)
