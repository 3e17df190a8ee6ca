"""Trials that several processes share, and that one of them leaves when it is killed; why a command of one failed."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest

from tests.conftest import ROOT
from tests.refusals import refused_call
from vicinal.utils.errors import InterruptedRunError, TrainingStoppedError
from vicinal.workflows.settings import Sampler, TuneSettings
from vicinal.workflows.tuning import trials as trials_module
from vicinal.workflows.tuning.runs import Runner, reason
from vicinal.workflows.tuning.study_folder import StudyFolder
from vicinal.workflows.tuning.study_recipe import read_space
from vicinal.workflows.tuning.trials import (
    first_number,
    given,
    import_optuna,
    in_states,
    open_trials,
    run_trials,
    seeded_sampler,
    shown_trials,
)

SPACE = read_space({"optimizer.lr": {"log": [1e-5, 1e-3]}, "loss": ["A", "B"], "schedule.steps": [[1, 2], [3]]})


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    return StudyFolder(tmp_path)


def opened(folder: StudyFolder, sampler: Sampler = "random") -> optuna.Study:
    study = open_trials(folder, "search")
    study.sampler = seeded_sampler(study, TuneSettings(sampler=sampler), seed=0)
    return study


def values(trial: optuna.Trial) -> dict[str, Any]:
    return {key: each.suggest(trial, key) for key, each in SPACE.items()}


def score(trial: optuna.Trial) -> float:
    return 1000 * values(trial)["optimizer.lr"]


def run(study: optuna.Study, number: int | None, objective: Any = score, is_stopping: Any = lambda: False) -> None:
    run_trials(study, objective, number, 1, is_stopping, lambda trial: None)


def test_a_trial_whose_process_was_killed_is_repeated_with_its_settings(folder: StudyFolder, monkeypatch) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from tests.workflows.test_tune_trials import StudyFolder, opened, run, values\n"
        "def killed(trial): values(trial); os.kill(os.getpid(), signal.SIGKILL)\n"
        "run(opened(StudyFolder(Path(sys.argv[1]))), 2, killed)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(folder.path)], cwd=ROOT).returncode == -9
    monkeypatch.setattr(trials_module, "GRACE", 1)
    study = opened(folder)
    (left,) = in_states(study, "RUNNING")
    assert set(left.params) == set(SPACE)
    run(study, 2)
    repeated, another = shown_trials(study)
    assert first_number(repeated) == 0 < first_number(another)  # 1 or 2: the grace period may end before either begins
    assert given(repeated) == left.params
    assert not in_states(study, "RUNNING", "WAITING")


def test_an_interrupted_trial_is_repeated_by_the_next_command(folder: StudyFolder) -> None:
    asked: list[dict[str, Any]] = []

    def interrupted(trial: optuna.Trial) -> float:
        asked.append(values(trial))
        raise InterruptedRunError("stopped")

    with pytest.raises(InterruptedRunError, match="the same command continues the study"):
        run(opened(folder), 2, interrupted, lambda: bool(asked))
    study = opened(folder)
    run(study, 2)
    assert len(shown_trials(study)) == 2
    first = shown_trials(study)[0]
    assert {key: each.decoded(first.params[key]) for key, each in SPACE.items()} == asked[0]


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["random", "tpe", "sobol"])
def test_a_continued_search_does_not_repeat_its_proposals(folder: StudyFolder, sampler: Sampler) -> None:
    for number in (2, 4):
        run(opened(folder, sampler), number)
    rates = [trial.params["optimizer.lr"] for trial in opened(folder, sampler).trials]
    assert len(set(rates)) == len(rates) == 4


def test_a_database_of_something_else_is_one_line(folder: StudyFolder) -> None:
    folder.trials.write_bytes(b"no database" * 100)
    refused_call(r"trials.sqlite: not a database of trials", opened, folder)


def test_a_missing_optuna_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    refused_call(r"not installed: pip install 'vicinal\[tune\]'", import_optuna)


SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(StudyFolder(tmp_path), SimpleNamespace(settings=SimpleNamespace(accelerator="cpu")))


def test_a_failure_is_one_line(tmp_path: Path) -> None:
    for messages, status, expected in (
        ("epoch 1\nvicinal train: error: data.source: no such file\n\n", 2, "data.source: no such file"),
        ("Traceback\n  File x\nOutOfMemoryError: CUDA out of memory.\n", 1, "OutOfMemoryError: CUDA out of memory."),
        ("", 3, "exit status 3"),
        ("epoch 1\n", -9, "ended by signal 9, perhaps for lack of memory"),
        ("epoch 1\n", -11, "ended by signal 11"),
    ):
        (tmp_path / "messages.log").write_text(messages)
        assert reason(tmp_path / "messages.log", status) == expected


def test_a_command_in_a_process_of_its_own(runner: Runner, tmp_path: Path) -> None:
    with pytest.raises(TrainingStoppedError, match=r"none: no such"):
        runner.evaluate("none", [])


def test_a_process_ends_with_its_study(runner: Runner) -> None:
    def fail() -> None:
        raise KeyboardInterrupt

    process = subprocess.Popen(SLEEP)
    with pytest.raises(KeyboardInterrupt):
        runner._wait(process, fail)
    assert process.poll() == -9
    process, runner.is_stopping = subprocess.Popen(SLEEP), lambda: True
    assert runner._wait(process, lambda: None) == -15
