"""The steps of the optimizer: its settings, gradients that are clipped, and those that are averaged."""

import math
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, MultiStepLR, OneCycleLR

from tests.refusals import refused_call
from tests.training.runs import gradients, trainer
from vicinal.training import Schedule


@pytest.mark.parametrize(("max_value", "max_norm"), [(0.001, None), (0.001, 0.01), (None, 0.01)])
def test_values_are_clipped_before_the_norm(
    small: list[str], tmp_path: Path, max_value: float | None, max_norm: float | None
) -> None:
    sgd = ["--optimizer.name=sgd", "--optimizer.momentum=0", "--optimizer.weight_decay=0", "--schedule.name=constant"]
    clip = [f"--max_grad_value={max_value or 'null'}", f"--max_grad_norm={max_norm or 'null'}"]
    found = []
    for folder, more in (("free", []), ("clipped", clip)):
        one = trainer(small, tmp_path / folder, *sgd, "--optimizer.lr=1", *more)
        found.append(torch.cat([gradient.flatten() for gradient in gradients(one)]))
    expected = found[0] if max_value is None else found[0].clamp(-max_value, max_value)
    expected = expected * min(1.0, (max_norm or math.inf) / expected.norm().item())
    torch.testing.assert_close(found[1], expected, rtol=1e-3, atol=1e-6)
    norms = [pd.read_csv(tmp_path / folder / "log.csv")["gradient norm"][0] for folder in ("free", "clipped")]
    assert norms[0] == norms[1] == pytest.approx(found[0].norm().item(), rel=1e-4)  # the norm before clipping


def test_the_optimizer_of_a_recipe(small: list[str], tmp_path: Path) -> None:
    """ProxyNCA++: Adam with a large eps, and class centers with a rate and a weight decay of their own."""
    more = [
        "--optimizer.name=adam",
        "--optimizer.eps=1",
        "--optimizer.betas=[0.8,0.99]",
        "--optimizer.weight_decay=0.1",
    ]
    more += ["--loss=ProxyAnchorLoss", "--optimizer.lr_factors.loss=100", "--optimizer.loss_weight_decay=0"]
    one = trainer(small, tmp_path / "run", *more)
    one.engine.set_learning_rates(epoch=0.0, step=0, num_steps=6)
    groups = {group["name"]: group for group in one.engine.optimizer.param_groups}
    names = ("lr", "eps", "betas", "weight_decay")
    assert [groups["head"][name] for name in names] == [0.001, 1.0, (0.8, 0.99), 0.1]
    assert [groups["loss"][name] for name in names] == [0.1, 1.0, (0.8, 0.99), 0.0]
    assert groups["loss"]["params"] == [one.loss.centers]
    for momentum in (0.99, 0.0):
        sgd = ["--optimizer.name=sgd", f"--optimizer.momentum={momentum}"]
        group = trainer(small, tmp_path / "run", *sgd).engine.optimizer.param_groups[0]
        assert (group["momentum"], group["nesterov"]) == (momentum, momentum > 0)


def test_accumulation_is_the_mean_gradient(small: list[str], tmp_path: Path) -> None:
    sgd = ["--optimizer.name=sgd", "--optimizer.momentum=0", "--optimizer.weight_decay=0", "--schedule.name=constant"]
    sgd += ["--model.freeze_batch_norm=statistics", "--optimizer.lr=1"]
    moved = gradients(trainer(small, tmp_path / "run", *sgd, "--accumulate_grad_batches=2"))
    one = trainer(small, tmp_path / "same", *sgd, "--accumulate_grad_batches=2")
    one.start()
    batches = next(one._batches_of_steps(one._plan()))
    assert len(batches) == 2
    loss = sum(sum(one.module(b["images"], b["labels"]).values()) for b in batches) / 2
    parameters = [parameter for group in one.parameter_groups.values() for parameter in group]
    expected = torch.autograd.grad(loss, parameters, allow_unused=True)
    for step, gradient in zip(moved, expected, strict=True):
        if gradient is not None:
            torch.testing.assert_close(step, gradient, rtol=1e-3, atol=1e-5)


STEPS = 60  # of a run of six epochs with ten steps each


def factors(schedule: Schedule, num_steps: int = STEPS) -> list[float]:
    return [schedule.factor(step / 10, step, num_steps) for step in range(num_steps)]


def torch_factors(make_scheduler, num_steps: int = STEPS) -> tuple[list[float], list[float]]:
    """The learning rates of a scheduler of torch for a rate of 1, and the first betas."""
    optimizer = torch.optim.Adam([torch.zeros(1, requires_grad=True)], lr=1.0)
    scheduler, rates, betas = make_scheduler(optimizer), [], []
    for _ in range(num_steps):
        rates.append(optimizer.param_groups[0]["lr"])
        betas.append(optimizer.param_groups[0]["betas"][0])
        optimizer.step()
        scheduler.step()
    return rates, betas


def test_step_decays_every_so_many_epochs() -> None:
    found = factors(Schedule("step", every=2, decay=0.5))
    assert [found[step] for step in (0, 19, 20, 39, 40)] == [1, 1, 0.5, 0.5, 0.25]


def test_multistep_decays_at_the_named_epochs_or_steps() -> None:
    found = factors(Schedule("multistep", steps=[1, 3], decay=0.1))
    assert [found[step] for step in (5, 10, 29, 30)] == pytest.approx([1, 0.1, 0.1, 0.01])
    found = factors(Schedule("multistep", steps=[15, 40], decay=0.1, unit="steps"))
    assert found == pytest.approx(torch_factors(lambda optimizer: MultiStepLR(optimizer, [15, 40], 0.1))[0])


def test_cosine_falls_from_one_to_zero_over_the_run() -> None:
    expected, _ = torch_factors(lambda optimizer: CosineAnnealingLR(optimizer, STEPS))
    assert factors(Schedule("cosine")) == pytest.approx(expected)
    assert Schedule("cosine").factor(epoch=6, step=STEPS, num_steps=STEPS) == 0


def test_warmup_rises_linearly_with_any_schedule() -> None:
    found = factors(Schedule("constant", warmup=2))
    assert [found[step] for step in (0, 5, 10, 20, 30)] == [0, 0.25, 0.5, 1, 1]
    assert factors(Schedule("constant", warmup=20, unit="steps")) == pytest.approx(found)
    assert factors(Schedule("step", every=1, decay=0.5, warmup=2))[10] == 0.25


@pytest.mark.parametrize("num_steps", [10, 60, 61])
@pytest.mark.parametrize("pct_start", [0.0, 0.3, 0.5])
@pytest.mark.parametrize("arguments", [{}, {"div_factor": 4.0, "final_div_factor": 2.0}])
def test_one_cycle_is_that_of_torch(arguments: dict[str, float], pct_start: float, num_steps: int) -> None:
    arguments = {"pct_start": pct_start, **arguments}
    rates, betas = torch_factors(lambda optimizer: OneCycleLR(optimizer, 1.0, num_steps, **arguments), num_steps)
    schedule = Schedule("one_cycle", momentum_range=(0.85, 0.95), **arguments)
    assert factors(schedule, num_steps) == pytest.approx(rates, abs=1e-12)
    assert [schedule.momentum(step, num_steps) for step in range(num_steps)] == pytest.approx(betas)


def test_one_cycle_whose_first_step_is_its_peak() -> None:
    assert factors(Schedule("one_cycle", pct_start=0.1), 10)[0] == 1
    assert factors(Schedule("one_cycle"), 1) == pytest.approx([1 / 25e4])


def test_impossible_values() -> None:
    for arguments, message in (
        ({"name": "step", "every": 0}, "schedule.every = 0 must be at least 1 of the epochs"),
        ({"name": "step", "decay": 0}, "schedule.decay = 0"),
        ({"warmup": -1}, "schedule.warmup = -1"),
        ({"name": "multistep"}, "schedule.steps"),
        ({"name": "multistep", "steps": [0], "unit": "steps"}, "schedule.steps = .0. must be positive numbers"),
        ({"name": "one_cycle", "pct_start": 1.5}, "schedule.pct_start = 1.5 must be from 0 to 1"),
        ({"name": "one_cycle", "div_factor": 0.5}, "schedule.div_factor = 0.5 must be 1 or more"),
        ({"name": "one_cycle", "momentum_range": (0.95, 0.85)}, "schedule.momentum_range = .* the lower one first"),
        ({"name": "one_cycle", "warmup": 1}, "schedule.warmup = 1 must be left out unless schedule.name is const"),
        ({"name": "cosine", "steps": [3]}, r"schedule.steps = \[3\] must be left out unless .* is multistep"),
        ({"name": "cosine", "pct_start": 0.1}, "schedule.pct_start = 0.1 must be left out unless .* one_cycle"),
    ):
        refused_call(message, Schedule, **arguments)
