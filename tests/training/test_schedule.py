from __future__ import annotations

import pytest

from vicinal.training import Schedule
from vicinal.utils.errors import InputError


def test_step_decays_every_so_many_epochs() -> None:
    schedule = Schedule("step", every=2, decay=0.5)
    assert [schedule.factor(epoch, 6) for epoch in (0, 1.9, 2, 3.9, 4)] == [1, 1, 0.5, 0.5, 0.25]


def test_multistep_decays_at_the_named_epochs() -> None:
    schedule = Schedule("multistep", steps=[1, 3], decay=0.1)
    assert [schedule.factor(epoch, 6) for epoch in (0.5, 1, 2.9, 3)] == pytest.approx([1, 0.1, 0.1, 0.01])


def test_cosine_falls_from_one_to_zero() -> None:
    schedule = Schedule("cosine")
    assert [schedule.factor(epoch, 4) for epoch in (0, 2, 4)] == pytest.approx([1, 0.5, 0])


def test_warmup_rises_linearly_with_any_schedule() -> None:
    assert [Schedule("constant", warmup=2).factor(epoch, 9) for epoch in (0, 0.5, 1, 2, 3)] == [0, 0.25, 0.5, 1, 1]
    assert Schedule("step", every=1, decay=0.5, warmup=2).factor(1, 9) == 0.25


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"every": 0}, "schedule.every = 0"),
        ({"decay": 0}, "schedule.decay = 0"),
        ({"warmup": -1}, "schedule.warmup = -1"),
        ({"name": "multistep"}, "schedule.steps"),
    ],
)
def test_impossible_values(arguments: dict, key: str) -> None:
    with pytest.raises(InputError, match=key):
        Schedule(**arguments)
