"""Trials that several processes share, and that one of them leaves when it is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import optuna
import pytest

from tests.conftest import ROOT
from vicinal.utils.errors import InputError, InterruptedRunError, TrainingStoppedError
from vicinal.workflows.settings import Sampler, TuneSettings
from vicinal.workflows.tuning import trials as trials_module
from vicinal.workflows.tuning.study_folder import StudyFolder
from vicinal.workflows.tuning.study_recipe import read_space
from vicinal.workflows.tuning.trials import (
    enqueue,
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


def test_trials_that_fail_have_a_reason_and_count(folder: StudyFolder) -> None:
    def failing(trial: optuna.Trial) -> float:
        raise TrainingStoppedError("lack of memory")

    study = opened(folder)
    run(study, 3, failing)
    assert [trial.user_attrs["reason"] for trial in in_states(study, "FAIL")] == ["lack of memory"] * 3


def test_enqueued_trials_are_run_once_and_tried_again_if_they_failed(folder: StudyFolder) -> None:
    def cell(trial: optuna.Trial) -> float:
        number = trial.suggest_int("cell", 0, 9)
        if number == 1 and not fixed:
            raise InputError("no")
        return number

    fixed: list[int] = []
    study = open_trials(folder, "grid")
    for expected in ([0, 2], [0, 2, 1]):
        enqueue(study, [{"cell": number} for number in range(3)])
        run(study, None, cell)
        assert [trial.value for trial in in_states(study, "COMPLETE")] == expected
        fixed.append(1)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["random", "tpe", "sobol"])
def test_a_continued_search_does_not_repeat_its_proposals(folder: StudyFolder, sampler: Sampler) -> None:
    for number in (2, 4):
        run(opened(folder, sampler), number)
    rates = [trial.params["optimizer.lr"] for trial in opened(folder, sampler).trials]
    assert len(set(rates)) == len(rates) == 4


def test_a_database_of_something_else_is_one_line(folder: StudyFolder) -> None:
    folder.trials.write_bytes(b"no database" * 100)
    with pytest.raises(InputError, match=r"trials.sqlite: not a database of trials"):
        opened(folder)


def test_a_missing_optuna_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"not installed: pip install 'vicinal\[tune\]'"):
        import_optuna()
