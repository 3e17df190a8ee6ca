"""The steps of the optimizer: its settings, gradients that are clipped, and those that are averaged."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd
import pytest
import torch

from tests.training.runs import Infinite, copied, trainer
from vicinal.utils.errors import NonFiniteLossError


@pytest.mark.parametrize(
    ("max_value", "max_norm"), [(0.001, None), (0.001, 0.01), (0.001, 1000.0), (None, 0.01), (None, None)]
)
def test_values_are_clipped_before_the_norm(
    small: list[str], tmp_path: Path, max_value: float | None, max_norm: float | None
) -> None:
    sgd = ["--optimizer.name=sgd", "--optimizer.momentum=0", "--optimizer.weight_decay=0", "--schedule.name=constant"]
    clip = [f"--max_grad_value={max_value or 'null'}", f"--max_grad_norm={max_norm or 'null'}"]
    found = []
    for folder, more in (("free", []), ("clipped", clip)):
        one = trainer(small, tmp_path / folder, *sgd, "--optimizer.lr=1", *more)
        parameters = [p for group in one.parameter_groups.values() for p in group]
        one.start()
        with one.watching():
            before = copied(parameters)
            one.train_step(next(one._batches_of_steps(one._plan())), epoch=0.0, num_steps=6)
        found.append(torch.cat([(a - b).flatten() for a, b in zip(before, parameters, strict=True)]))
        one.log.close()
    expected = found[0] if max_value is None else found[0].clamp(-max_value, max_value)
    expected = expected * min(1.0, (max_norm or math.inf) / expected.norm().item())
    torch.testing.assert_close(found[1], expected, rtol=1e-3, atol=1e-6)
    norms = [pd.read_csv(tmp_path / folder / "log.csv")["gradient norm"][0] for folder in ("free", "clipped")]
    assert norms[0] == norms[1] == pytest.approx(found[0].norm().item(), rel=1e-4)  # the norm before clipping


def test_infinite_gradients_are_not_clipped_away(small: list[str], tmp_path: Path) -> None:
    one = trainer(small, tmp_path / "run", "--max_grad_value=10")
    forward = one.embedder.forward
    one.embedder.forward = lambda images: Infinite.apply(forward(images))
    with pytest.raises(NonFiniteLossError, match="step 1: the gradient is not finite"):
        one.fit()


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
    one = trainer(small, tmp_path / "run", *sgd, "--accumulate_grad_batches=2")
    one.start()
    start = copied([p for group in one.parameter_groups.values() for p in group])
    with one.watching():
        batches = next(one._batches_of_steps(one._plan()))
        one.train_step(batches, epoch=0.0, num_steps=6)
    assert len(batches) == 2
    moved = [a - b for a, b in zip(start, [p for g in one.parameter_groups.values() for p in g], strict=True)]
    for parameter, value in zip([p for g in one.parameter_groups.values() for p in g], start, strict=True):
        parameter.data.copy_(value)
    loss = sum(sum(one.module(b["images"], b["labels"]).values()) for b in batches) / 2
    gradients = torch.autograd.grad(loss, [p for g in one.parameter_groups.values() for p in g], allow_unused=True)
    for step, gradient in zip(moved, gradients, strict=True):
        if gradient is not None:
            torch.testing.assert_close(step, gradient, rtol=1e-3, atol=1e-5)
