"""A run says how long its training took, over its interruptions, and how many parameters it trained."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from tests.training.runs import interrupted
from vicinal.models import Embedder, add_lora
from vicinal.training import Recipe, resume, train
from vicinal.training.checkpoint import load_checkpoint, save_checkpoint
from vicinal.utils.errors import InputError
from vicinal.utils.run_folder import TrainingCost


def test_the_time_of_a_resumed_run_is_that_of_its_parts(small: list[str], tmp_path: Path) -> None:
    run = interrupted(small, tmp_path / "run", 2)
    assert TrainingCost.load(run.training) is None
    state = load_checkpoint(run.last)
    assert 0 < state["progress"]["seconds"] < 60
    state["progress"]["seconds"] = 1000.0
    save_checkpoint(run.last, state)
    before = time.monotonic()
    cost = TrainingCost.load(resume(run.path).training)
    assert cost is not None
    assert 1000 < cost.seconds < 1000 + time.monotonic() - before


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        (["--loss=ProxyAnchorLoss", "--model.pooling=gem", "--model.learned_p=true"], ("backbone", "pooling", "head")),
        (["--freeze_backbone_epochs=1"], ("head",)),
        (["--features=frozen"], ("head",)),
    ],
)
def test_the_parameters_of_the_model_that_were_trained(
    small: list[str], tmp_path: Path, settings: list[str], parts: tuple[str, ...]
) -> None:
    more = [f"--feature_cache={tmp_path / 'cache'}"] if "--features=frozen" in settings else []
    run = train(Recipe.load(overrides=[*small, *settings, *more, "--epochs=1"]), tmp_path / "run")
    groups = Embedder.from_pretrained(run.model).train().parameter_groups()
    cost = TrainingCost.load(run.training)
    assert cost is not None
    assert cost.trained_parameters == sum(each.numel() for part in parts for each in groups[part]) > 0


@pytest.mark.slow
def test_of_a_backbone_with_adapters_they_count_alone(small: list[str], tmp_path: Path) -> None:
    pytest.importorskip("peft")
    run = train(Recipe.load(overrides=[*small, "--fine_tuning.method=lora", "--epochs=1"]), tmp_path / "run")
    model = Embedder.from_pretrained(run.model)
    head = sum(each.numel() for each in model.head.parameters())
    with torch.random.fork_rng():
        add_lora(model)
    adapters = sum(each.numel() for each in model.backbone.parameters() if each.requires_grad)
    cost = TrainingCost.load(run.training)
    assert cost is not None
    assert cost.trained_parameters == head + adapters


def test_a_damaged_file_is_an_error_of_one_line(tmp_path: Path) -> None:
    for text in ("", "[]", "{}", '{"seconds": 1, "minutes": 2}'):
        (tmp_path / "training.json").write_text(text)
        with pytest.raises(InputError, match=r"training\.json: damaged") as caught:
            TrainingCost.load(tmp_path / "training.json")
        assert "\n" not in str(caught.value), text
