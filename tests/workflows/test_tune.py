"""A search: its trials, the best ones, the replay, evaluated once on the test split; with runs that are made up."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.refusals import refused_call
from tests.workflows.studies import MadeUp, curve, write_table
from vicinal.data import Table
from vicinal.report.page.markup import Markup
from vicinal.training import Recipe
from vicinal.utils.errors import InputError, TrainingStoppedError
from vicinal.workflows import TuneSettings, tune
from vicinal.workflows.tuning import runs
from vicinal.workflows.tuning.tune import TuneResult

pytestmark = pytest.mark.usefixtures("quick_recipes")
LR = "--search.optimizer.lr={log: [0.001, 0.1]}"


def run(recipe: Path, start: MadeUp, *words: str, **options: Any) -> TuneResult:
    settings = TuneSettings(**{"trials": 4, "sampler": "random", **options})
    return tune(recipe, "study", settings, words or [LR], start=start)


@pytest.fixture
def without_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages have no plots, which take longer than the trials; those of a trial that fails have them."""
    monkeypatch.setattr("vicinal.report.page.study._plot", lambda *_: Markup())


@pytest.mark.usefixtures("without_plots")
def test_the_best_settings_end_after_their_best_epoch_and_are_replayed_once(study_recipe: Path) -> None:
    start = MadeUp()
    result = run(study_recipe, start)
    assert start.names() == ["trials/000", "trials/001", "trials/002", "trials/003"]
    rates = [start.configs[name]["optimizer"]["lr"] for name in start.names()]
    assert len(set(rates)) == 4
    assert all(0.001 <= rate <= 0.1 for rate in rates)
    best = min(range(4), key=lambda at: abs(rates[at] - 0.01))
    assert result.best == best
    assert (result.best_trial.score, result.best_trial.epoch) == (pytest.approx(0.9 - abs(rates[best] - 0.01)), 2)
    found = Recipe.load(result.recipe).config
    assert found["optimizer"]["lr"] == pytest.approx(rates[best])
    assert (found["epochs"], found["stop_epoch"]) == (3, 2)
    assert found["data"]["source"] == "table.parquet"  # the recipe is for the user's data, not for a table of the study
    assert result.page.read_text().startswith("<!doctype html>")
    assert f"best: trial {best}, recall@1 0.8" in str(result)
    json.dumps(result.to_dict())
    # None of this has seen test images.
    assert result.test is None
    assert not start.names("evaluate")
    sources = {start.configs[name]["data"]["source"] for name in start.names()}
    assert sources == {str(Path("study/tables/half.parquet").resolve())}
    table = Table.from_parquet("study/tables/half.parquet")
    assert table.splits == ["train", "val"]
    assert table.subset("train").classes == ["c0", "c1", "c2"]
    assert table.subset("val").classes == ["c3", "c4", "c5"]
    # The replay trains on all classes.
    start = MadeUp()
    result = run(study_recipe, start, replay=True)
    assert start.names() == start.names("evaluate") == ["final"]
    final = start.configs["final"]
    assert final["stop_epoch"] == 2
    table = Table.from_parquet(final["data"]["source"])
    assert table.subset("train").classes == [f"c{label}" for label in range(6)]
    assert table.subset("test").classes == ["c6", "c7"]
    assert result.test["metrics"] == {"recall@1": pytest.approx(curve(final)[1])}
    assert "Metrics on the test split" in result.page.read_text()
    # A better trial that comes later is not evaluated on it.
    later = MadeUp(lambda config: [0.0, 1.0, 0.0])
    after = run(study_recipe, later, replay=True, trials=5)
    assert later.names() == ["trials/004"]
    assert not later.names("evaluate")
    assert (after.best, after.test) == (4, result.test)
    # A replay that was killed before its evaluation goes on with its trial.
    Path("study/test.json").unlink()
    again = MadeUp(lambda config: [0.0, 1.0, 0.0])
    finished = run(study_recipe, again, replay=True, trials=5)
    assert (again.names(), again.names("evaluate")) == ([], ["final"])
    assert (finished.best, finished.test["trial"]) == (4, result.best)


def test_foreign_images_are_no_test_images(study_recipe: Path) -> None:
    """The tables of trials have none, so that nothing later would see it."""
    table = Table.from_parquet("table.parquet")
    table.subset("test").save("foreign.csv")
    noise = ["--data.noise.foreign=foreign.csv", "--data.noise.foreign_fraction=0.5"]
    refused_call(r"is not a foreign image: it is one of the table's own", run, study_recipe, MadeUp(), LR, *noise)
    with pytest.raises(InputError, match=r"all runs of a study have the same data\.noise\.foreign"):
        run(study_recipe, MadeUp(), "--search.data.noise.foreign=[a.csv, b.csv]")


def test_a_training_list_is_applied_once(study_recipe: Path) -> None:
    table = Table.from_parquet("table.parquet")
    training = table.subset("train").frame
    lines = [f"{path},{label[1:]}" for path, label in zip(training["path"], training["label"], strict=True)]
    Path("list.csv").write_text("\n".join(lines))
    start = MadeUp()
    run(study_recipe, start, LR, "--data.train_list=list.csv", trials=1)
    assert start.configs["trials/000"]["data"]["train_list"] is None


def test_training_images_that_validate_become_queries_and_gallery(study_recipe: Path) -> None:
    """In-Shop has neither among its training images."""
    table = Table.from_parquet("table.parquet")
    is_test = table.frame["split"] == "test"
    Table(table.frame.assign(is_query=is_test, is_gallery=is_test)).save("table.parquet")
    run(study_recipe, MadeUp(), trials=1)
    frame = Table.from_parquet("study/tables/half.parquet").frame
    assert (frame["is_query"] == (frame["split"] == "val")).all()
    frame = Table.from_parquet("study/tables/final.parquet").frame
    assert (frame["is_query"] == (frame["split"] == "test")).all()


def test_replay_needs_a_test_split(study_recipe: Path) -> None:
    table = Table.from_parquet("table.parquet")
    Table(table.frame[table.frame["split"] == "train"]).save("table.parquet")
    refused_call("needs a split test", run, study_recipe, MadeUp(), replay=True)
    assert not Path("study").exists()


def test_with_folds_every_class_validates_once_and_the_mean_counts(study_recipe: Path) -> None:
    def scores(config: dict[str, Any]) -> list[float]:
        return [0.1, 0.2, 0.6] if config["data"]["source"].endswith("fold0.parquet") else [0.3, 0.8, 0.2]

    start = MadeUp(scores)
    result = run(study_recipe, start, trials=1, held_out="3")
    assert start.names() == ["trials/000/fold0", "trials/000/fold1", "trials/000/fold2"]
    held_out = [Table.from_parquet(f"study/tables/fold{fold}.parquet").subset("val").classes for fold in range(3)]
    assert held_out == [["c0", "c1"], ["c2", "c3"], ["c4", "c5"]]
    assert (result.best_trial.score, result.best_trial.epoch) == (pytest.approx((0.2 + 0.8 + 0.8) / 3), 2)


def test_the_split_val_of_the_data_may_validate(study_recipe: Path) -> None:
    table = Table.from_parquet("table.parquet")
    split = table.frame["split"].mask(table.frame["label"] == "c1", "val")
    Table(table.frame.assign(split=split)).save("table.parquet")
    run(study_recipe, MadeUp(), trials=1, held_out="val")
    table = Table.from_parquet("study/tables/val.parquet")
    assert (table.splits, table.subset("val").classes) == (["train", "val"], ["c1"])
    final = Table.from_parquet("study/tables/final.parquet")
    assert final.subset("train").classes == [f"c{label}" for label in range(6)]


@pytest.mark.slow
def test_further_seeds_decide_among_the_best(study_recipe: Path) -> None:
    """The trial that was best by luck is not the best one of three seeds."""

    def scores(config: dict[str, Any]) -> list[float]:
        lucky = config["optimizer"]["lr"] == 0.002 and config["seed"] == 0
        return [0.0, {0.001: 0.1, 0.002: 0.5, 0.003: 0.6}[config["optimizer"]["lr"]] + 0.2 * lucky, 0.0]

    words = "--search.optimizer.lr=[0.001, 0.002, 0.003]"
    start = MadeUp(scores)
    single = run(study_recipe, start, words, trials=8)
    assert single.best_trial.values == {"optimizer.lr": 0.002}
    assert len(start.started) == 3  # trials with the same settings have the same scores
    assert {trial.state for trial in single.trials} == {"complete"}
    seeded = run(study_recipe, start, words, trials=8, seeds=3, top=2)
    seeds = {name: start.configs[name] for name in start.names() if name.startswith("seeds/")}
    assert sorted((each["optimizer"]["lr"], each["seed"]) for each in seeds.values()) == [
        (0.002, 1), (0.002, 2), (0.003, 1), (0.003, 2),
    ]  # fmt: skip
    assert seeded.best_trial.values == {"optimizer.lr": 0.003}
    assert seeded.best_trial.seed_scores == pytest.approx((0.6, 0.6, 0.6))


def test_a_trial_that_fails_fails_alone(study_recipe: Path) -> None:
    def scores(config: dict[str, Any]) -> list[float]:
        if config["optimizer"]["lr"] > 0.01:
            raise ValueError("CUDA out of memory")
        return curve(config)

    result = run(study_recipe, MadeUp(scores), trials=6)
    failed = [trial for trial in result.trials if trial.state == "failed"]
    assert 0 < len(failed) < 6
    assert len(result.trials) == 6
    assert {trial.reason for trial in failed} == {"CUDA out of memory"}
    assert "failed: CUDA out of memory" in result.page.read_text()


def test_settings_that_do_not_fit_together_fail_without_a_process(study_recipe: Path, monkeypatch) -> None:
    monkeypatch.undo()  # each recipe is checked
    monkeypatch.chdir(study_recipe.parent)
    monkeypatch.setattr(runs, "PAUSE", 0)
    start = MadeUp()
    result = run(study_recipe, start, "--search.batch_size=[4, 5]", trials=6)
    failed = {trial.number for trial in result.trials if trial.values["batch_size"] == 5}
    assert failed == {trial.number for trial in result.trials if trial.state == "failed"} != set()
    assert len(start.started) == 1
    assert "batch_size = 5 must be a multiple" in next(trial.reason for trial in result.trials if trial.reason)


def test_a_study_whose_trials_all_fail_ends(study_recipe: Path) -> None:
    def scores(config: dict[str, Any]) -> list[float]:
        raise ValueError("no such device")

    start = MadeUp(scores)
    with pytest.raises(TrainingStoppedError, match="5 trials failed, the last: no such device"):
        run(study_recipe, start, trials=50)
    assert len(start.started) == 5
    assert Path("study/report.html").is_file()


@pytest.mark.slow
def test_hopeless_trials_are_ended_early(study_recipe: Path) -> None:
    def scores(config: dict[str, Any]) -> list[float]:
        return [0.5, 0.6, 0.7] if config["optimizer"]["lr"] < 0.03 else [0.1, 0.2, 0.3]

    start = MadeUp(scores)
    result = run(study_recipe, start, trials=12, prune="median")
    pruned = [trial for trial in result.trials if trial.state == "ended early"]
    assert pruned
    assert all(trial.values["optimizer.lr"] >= 0.03 and trial.number >= 5 for trial in pruned)
    ended = [each for each in start.runs if each.asked]
    assert len(ended) == len(pruned)
    assert all(each.epoch < 3 and each.asked == ["kill"] for each in ended)


@pytest.mark.slow
def test_with_folds_the_first_one_decides_which_trials_are_ended(study_recipe: Path, monkeypatch) -> None:
    def scores(config: dict[str, Any]) -> list[float]:
        return [0.5, 0.6] if config["data"]["source"].endswith("fold0.parquet") else [0.1, 0.2]

    monkeypatch.setattr(
        "optuna.Trial.should_prune", lambda self: self.study.trials[self.number].intermediate_values[1] == 0.1
    )
    result = run(study_recipe, MadeUp(scores), trials=1, held_out="2")
    assert result.trials[0].state == "complete"


@pytest.mark.slow
def test_weights_of_trials_are_deleted_unless_they_are_to_be_kept(study_recipe: Path) -> None:
    run(study_recipe, MadeUp(), trials=1)
    assert not Path("study/trials/000/model").exists()
    run(study_recipe, MadeUp(), trials=2, keep_weights=True)
    assert Path("study/trials/001/model").exists()


@pytest.mark.usefixtures("without_plots")
def test_a_study_is_continued_without_its_recipe(study_recipe: Path) -> None:
    run(study_recipe, MadeUp(), trials=1, held_out="2")
    study_recipe.unlink()
    start = MadeUp()
    result = tune(None, "study", TuneSettings(trials=2), start=start)
    assert start.names() == ["trials/001/fold0", "trials/001/fold1"]
    assert len(result.trials) == 2


def test_another_study_is_refused(study_recipe: Path) -> None:
    run(study_recipe, MadeUp(), trials=1)
    for words, options, message in (
        ([LR, "--epochs=4"], {}, "study holds another study: epochs = 4 differs from the study's own 3; give another"),
        (["--search.optimizer.lr={log: [0.001, 0.2]}"], {}, "another study: search.optimizer.lr differs"),
        ([LR, "--search.model.dim=[8, 16]"], {}, "another study: search.model.dim differs"),
        ([LR], {"held_out": "2"}, "another study: held_out = 2 differs from the study's own half"),
    ):
        refused_call(message, run, study_recipe, MadeUp(), *words, **options)


def test_a_folder_of_something_else_is_refused(study_recipe: Path) -> None:
    Path("study").mkdir()
    Path("study/thesis.txt").touch()
    refused_call("study exists already and holds no study", run, study_recipe, MadeUp())
    refused_call("nothing holds no study to continue", tune, None, "nothing")


@pytest.mark.slow
def test_several_jobs_run_at_a_time_on_devices_of_their_own(study_recipe: Path, monkeypatch) -> None:
    monkeypatch.setattr("vicinal.workflows.tuning.runs._devices", lambda recipe: ["3", "5"])
    start = MadeUp()
    run(study_recipe, start, trials=4, jobs=2)
    devices = [environment["CUDA_VISIBLE_DEVICES"] for _, _, environment in start.started]
    assert set(devices[:2]) == {"3", "5"}
    assert {"3", "5"} == set(devices[2:])


def test_batches_that_half_of_the_classes_are_too_few_for(study_recipe: Path) -> None:
    refused_call(r"held_out = half, half: .*classes", run, study_recipe, MadeUp(), LR, "--batch_size=8")
    assert not Path("study").exists()


@pytest.mark.slow
def test_runs_that_are_counted_in_steps_replay_their_steps(study_recipe: Path) -> None:
    write_table(Path("table.parquet"), classes=16)
    start = MadeUp()
    result = run(study_recipe, start, LR, "--epochs=null", "--max_steps=40", trials=1)
    found = Recipe.load(result.recipe).settings
    assert (found.epochs, found.max_steps, found.stop_epoch, found.steps_per_epoch) == (None, 40, 2, 6)


@pytest.mark.slow
def test_the_replay_has_the_batches_of_the_search(study_recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # each recipe is read
    monkeypatch.chdir(study_recipe.parent)
    monkeypatch.setattr(runs, "PAUSE", 0)
    start = MadeUp()
    result = run(study_recipe, start, LR, "--batch_size=null", trials=1)
    found = Recipe.load(result.recipe).settings
    assert (found.batch_size, found.samples_per_class) == (6, 2)  # of three classes; of all six it would be 12
