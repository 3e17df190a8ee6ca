"""What a run says of its progress."""

from __future__ import annotations

import time

import pytest

from vicinal.training.progress import Progress, ProgressDisplay, RunLength


@pytest.mark.parametrize(
    ("seconds", "epoch_at", "expected"),
    [(3.0, None, ["about 24 min 0 s for 480 more steps"]), (0.01, None, []), (3.0, 5, [])],
)
def test_the_time_of_a_run_is_said_after_its_first_steps_unless_an_epoch_has_said_it(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    seconds: float,
    epoch_at: int | None,
    expected: list[str],
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    progress = Progress()
    display = ProgressDisplay(RunLength(10, None), "mAP@R", progress)
    with display.bar():
        for number in range(40):
            now += seconds + 100 * (number == 0)  # the first step compiles kernels and starts processes
            progress.count_step()
            display.step(progress, 0.5, num_steps=500)
            if number == epoch_at:
                progress.count_epoch()
                display.epoch(progress)
    lines = [line for line in capsys.readouterr().err.splitlines() if "more steps" in line]
    assert [line.partition(", ")[0] for line in lines] == expected


def test_the_time_that_is_left_is_that_of_epochs_and_not_of_what_comes_once_before(monkeypatch, capsys) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    progress = Progress()
    display = ProgressDisplay(RunLength(10, None), "mAP@R", progress)
    with display.bar():
        now += 1000  # of frozen features
        for _ in range(2):
            display.start(progress, num_steps=10)
            progress.count_step()
            display.step(progress, 0.5, num_steps=10)
            now += 3
            progress.count_epoch()
            display.epoch(progress)
    assert [line.rpartition(", ")[2] for line in capsys.readouterr().err.splitlines()] == ["27 s left", "24 s left"]
