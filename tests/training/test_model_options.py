"""Options of the model in a run: what is frozen stays, the exponent of GeM learns."""

from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn

from tests.training.runs import trainer
from vicinal.models import Embedder
from vicinal.training import Trainer
from vicinal.training.checkpoint import load_checkpoint


def test_batch_norm_frozen_as_a_whole_stays_after_frozen_epochs_too(small: list[str], tmp_path: Path) -> None:
    decay = ["--optimizer.weight_decay=0.9", "--optimizer.lr=0.1"]
    one = trainer(small, tmp_path / "run", "--model.freeze_batch_norm=all", "--freeze_backbone_epochs=1", *decay)
    norms = [module for module in one.embedder.backbone.modules() if isinstance(module, nn.BatchNorm2d)]
    affine = [parameter for norm in norms for parameter in norm.parameters()]
    optimized = {id(p) for group in one.engine.optimizer.param_groups for p in group["params"]}
    assert not optimized & {id(parameter) for parameter in affine}
    frozen = [*affine, *(buffer for norm in norms for buffer in norm.buffers())]
    before = [tensor.detach().clone() for tensor in frozen]
    convolution = next(m.weight for m in one.embedder.backbone.modules() if isinstance(m, nn.Conv2d))
    initial = convolution.detach().clone()
    one.finish = lambda: None  # which would load the weights of the best epoch
    one.fit()
    assert len(affine) > 10
    assert all(torch.equal(a, b) for a, b in zip(before, frozen, strict=True))
    assert not any(parameter.requires_grad for parameter in affine)
    assert not torch.equal(convolution, initial)
    Trainer.finish(one)
    assert Embedder.from_pretrained(one.run.model).config["freeze_batch_norm"] == "all"


def test_the_exponent_of_gem_learns_at_its_own_rate_without_weight_decay(small: list[str], tmp_path: Path) -> None:
    more = [
        "--model.pooling=gem",
        "--model.learned_p=true",
        "--optimizer.lr_factors.pooling=10",
        "--optimizer.weight_decay=0.5",
        "--epochs=1",
    ]
    more.append("--transform.size=64")  # smaller ones have maps of one pixel, where the exponent does nothing
    one = trainer(small, tmp_path / "run", *more)
    groups = {group["name"]: group for group in one.engine.optimizer.param_groups}
    assert groups["pooling"]["params"] == [one.embedder.pooling.p]
    assert {name: group["weight_decay"] for name, group in groups.items()} == {
        "backbone": 0.5,
        "pooling": 0.0,
        "head": 0.5,
    }
    one.fit()
    log = pd.read_csv(one.run.log)
    assert log["lr pooling"].tolist() == pytest.approx((10 * log["lr backbone"]).tolist())
    p = load_checkpoint(one.run.last)["module"]["embedder.pooling.p"].item()
    assert p != pytest.approx(3, abs=1e-3)
    plain = trainer(small, tmp_path / "plain")
    assert [group["name"] for group in plain.engine.optimizer.param_groups] == ["backbone", "head"]
