"""Trials that several processes share, and that one of them leaves when it is killed."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from vicinal.utils.errors import InputError
from vicinal.workflows.tuning import trials as trials_module
from vicinal.workflows.tuning.scheduler import WAITING
from vicinal.workflows.tuning.scores import Best
from vicinal.workflows.tuning.search_space import read_space
from vicinal.workflows.tuning.study_folder import StudyFolder
from vicinal.workflows.tuning.trials import ClaimedTrial, Trials

SPACE = {"optimizer.lr": {"log": [1e-5, 1e-3]}, "loss": ["A", "B"], "schedule.steps": [[1, 2], [3]]}


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    (tmp_path / "study").mkdir()
    return StudyFolder(tmp_path / "study")


def opened(folder: StudyFolder, sampler: trials_module.Sampler = "random") -> Trials:
    return Trials(folder, read_space(SPACE), sampler)


def claimed(trials: Trials, num_trials: int = 100) -> ClaimedTrial:
    trial = trials.next(num_trials)
    assert isinstance(trial, ClaimedTrial)
    return trial


def test_two_commands_share_the_trials(folder: StudyFolder) -> None:
    first, second = opened(folder), opened(folder)
    one, two = claimed(first), claimed(second)
    assert (one.number, two.number) == (0, 1)
    assert second.next(2) is WAITING  # the first one may be killed yet
    one.finish(Best(0.5, 3))
    assert second.next(2) is WAITING
    two.fail("lack of memory")
    assert first.next(2) is second.next(2) is None
    assert [trial.value for trial in first.all] == [0.5, None]
    assert first.reason(first.failed[0]) == "lack of memory"


def test_a_trial_whose_process_is_gone_is_taken_over_with_its_settings(folder: StudyFolder) -> None:
    first = claimed(opened(folder))
    first.release()  # as the system does when the process is killed
    again = claimed(opened(folder))
    assert (again.number, again.values) == (first.number, first.values)
    again.finish(Best(0.5, 1))
    assert claimed(opened(folder)).number == 1


def test_a_trial_whose_process_was_killed_while_it_was_made_gets_the_missing_settings(folder: StudyFolder) -> None:
    trials = opened(folder)
    half = trials.study.ask()
    rate = trials.space["optimizer.lr"].suggest(half, "optimizer.lr")
    taken = claimed(opened(folder))
    assert taken.number == half.number == 0
    assert taken.values["optimizer.lr"] == rate
    assert set(taken.values) == set(SPACE)


def test_the_system_releases_the_locks_of_a_killed_process(folder: StudyFolder) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from vicinal.workflows.tuning.study_folder import StudyFolder\n"
        "assert StudyFolder(Path(sys.argv[1])).claim('trials/000')\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(folder.path)], cwd=ROOT)
    assert killed.returncode == -9
    lock = folder.claim("trials/000")
    assert lock is not None
    assert folder.claim("trials/000") is None  # held by this process now
    lock.release()


@pytest.mark.parametrize("end", [b'{"op_code": 5, "trial', b"\x80"])
def test_a_line_that_a_killed_process_left_unfinished_is_cut_off(folder: StudyFolder, end: bytes) -> None:
    trials = opened(folder)
    claimed(trials).finish(Best(0.5, 1))
    for _ in range(2):
        with folder.journal.open("ab") as file:
            file.write(end)
        claimed(opened(folder)).finish(Best(0.25, 2))
    assert [trial.value for trial in opened(folder).all] == [0.5, 0.25, 0.25]


@pytest.mark.parametrize("sampler", ["random", "tpe", "sobol"])
def test_a_continued_search_does_not_repeat_its_proposals(tmp_path: Path, sampler: trials_module.Sampler) -> None:
    found = []
    for name, restarts in (("straight", False), ("restarted", True)):
        (tmp_path / name).mkdir()
        folder = StudyFolder(tmp_path / name)
        trials = opened(folder, sampler)
        values = []
        for number in range(14):  # TPE learns from the 10th trial on
            trials = opened(folder, sampler) if restarts else trials
            trial = claimed(trials)
            values.append(trial.values)
            trial.finish(Best(number / 14, 1))
        found.append(values)
    assert len({value["optimizer.lr"] for value in found[0]}) == 14
    assert found[0] == found[1]


def test_the_trials_of_sobol_cover_each_setting_evenly(folder: StudyFolder) -> None:
    trials = opened(folder, "sobol")
    values = []
    for _ in range(8):
        trial = claimed(trials)
        values.append(trial.values)
        trial.finish(Best(0.5, 1))
    eighths = [math.floor(8 * math.log(each["optimizer.lr"] / 1e-5) / math.log(100)) for each in values]
    assert sorted(eighths) == list(range(8))
    assert sorted(each["loss"] for each in values) == ["A"] * 4 + ["B"] * 4
    assert sorted(len(each["schedule.steps"]) for each in values) == [1] * 4 + [2] * 4


def test_a_trial_reports_each_epoch_once(folder: StudyFolder, recwarn: pytest.WarningsRecorder) -> None:
    trials = opened(folder)
    trial = claimed(trials)
    assert not trial.is_hopeless({})
    assert not trial.is_hopeless({1: 0.25})
    assert not trial.is_hopeless({1: 0.25, 2: 0.5, 3: float("nan")})
    assert trials.all[0].intermediate_values == {1: 0.25, 2: 0.5}
    assert not [each for each in recwarn if "already reported" in str(each.message)]


def test_a_journal_of_something_else_is_one_line(folder: StudyFolder) -> None:
    folder.journal.write_bytes(b'{"op": 1}\n')
    with pytest.raises(InputError, match=r"journal.log: not a journal of trials"):
        opened(folder)


def test_a_missing_optuna_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"not installed: pip install 'vicinal\[tune\]'"):
        trials_module.import_optuna()
