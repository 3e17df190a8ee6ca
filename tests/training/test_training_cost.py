"""A run says how long its training took, over its interruptions, and how many parameters it trained."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from tests.training.interruption import interrupt_in_step
from vicinal.models import Embedder, add_lora
from vicinal.training import Recipe, resume, train
from vicinal.training.checkpoint import load_checkpoint, save_checkpoint
from vicinal.training.runs import create_trainer
from vicinal.training.training_data import load_training_table
from vicinal.utils.errors import InputError, InterruptedRunError
from vicinal.utils.run_folder import RunFolder, TrainingCost


@pytest.fixture
def interrupted(small: list[str], tmp_path: Path) -> RunFolder:
    """A run that was stopped after its second step."""
    recipe, run = Recipe.load(overrides=small), RunFolder(tmp_path / "run")
    one = create_trainer(recipe, load_training_table(recipe.settings), run)
    interrupt_in_step(one, 2)
    with pytest.raises(InterruptedRunError):
        one.fit()
    assert TrainingCost.load(run.training) is None
    return run


def test_the_time_of_a_resumed_run_is_that_of_its_parts(interrupted: RunFolder) -> None:
    state = load_checkpoint(interrupted.last)
    assert 0 < state["progress"]["seconds"] < 60
    state["progress"]["seconds"] = 1000.0
    save_checkpoint(interrupted.last, state)
    before = time.monotonic()
    resume(interrupted.path)
    cost = TrainingCost.load(interrupted.training)
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
