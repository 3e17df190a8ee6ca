"""A run that ends before its schedule: its epochs are the first ones of the whole run, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from vicinal.training import Recipe, resume, train
from vicinal.training.progress import Progress, RunLength
from vicinal.utils.errors import InputError


def steps(small: list[str], out: Path, *more: str) -> pd.DataFrame:
    run = train(Recipe.load(overrides=[*small, "--epochs=3", "--schedule.name=cosine", *more]), out)
    assert run.model.is_dir()
    return pd.read_csv(run.log).drop(columns="images/s")


def test_the_schedule_goes_on_but_the_run_ends(small: list[str], tmp_path: Path) -> None:
    whole, stopped = steps(small, tmp_path / "whole"), steps(small, tmp_path / "stopped", "--stop_epoch=2")
    assert 0 < len(stopped) < len(whole)
    pd.testing.assert_frame_equal(stopped, whole.head(len(stopped)))
    resume(tmp_path / "stopped")
    assert len(pd.read_csv(tmp_path / "stopped" / "log.csv")) == len(stopped)


def test_the_earliest_end_counts() -> None:
    assert RunLength(epochs=3, max_steps=None, stop_epoch=5).is_reached(Progress(epoch=3))
    assert not RunLength(epochs=None, max_steps=100, stop_epoch=5).is_reached(Progress(step=99, epoch=4))
    assert RunLength(epochs=None, max_steps=100, stop_epoch=5).is_reached(Progress(step=99, epoch=5))
    assert RunLength(epochs=3, max_steps=None, stop_epoch=2).fraction(Progress(epoch=1)) == 0.5


def test_it_stops_after_an_epoch_at_least() -> None:
    with pytest.raises(InputError, match="stop_epoch = 0 must be at least 1"):
        Recipe.load(overrides=["--data.source=digits", "--model.pretrained=false", "--stop_epoch=0"])
