"""With strategy fsdp each process holds a part of the weights, and a run is what it is with ddp."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from tests.processes import Results, run_groups
from tests.training.test_processes import STILL
from vicinal import Embedder
from vicinal.training import Recipe, resume, train
from vicinal.training.checkpoint import load_checkpoint
from vicinal.training.runs import create_trainer
from vicinal.training.strategy import own_part
from vicinal.training.training_data import load_training_table
from vicinal.utils.run_folder import RunFolder

VIT = ["--model.backbone=test_vit", "--model.pooling=token", "--model.norm=none", "--transform.size=32"]
CENTERS = ["--loss=CenterContrastiveLoss", "--centers=class_means", "--max_grad_value=0.01", "--max_grad_norm=0.05"]
MICRO_BATCHES = [
    *VIT,
    "--micro_batch_size=3",
    "--max_grad_norm=0.5",
    "--ema_decay=0.9",
    "--loss=MarginLoss",
    "--validation.train_images=9",
]
LONG_RUNS = {
    "centers": [*CENTERS, "--model.learned_p=true"],
    "LoRA": [*VIT, "--fine_tuning.method=lora", "--precision=bf16-mixed", "--gradient_checkpointing=true"],
    "last block": [*VIT, "--fine_tuning.method=last_blocks", "--optimizer.layer_decay=0.5", "--micro_batch_size=1"],
    "frozen epochs": ["--freeze_backbone_epochs=1", "--accumulate_grad_batches=2", "--ema_decay=0.5"],
    "sharded centers": [*CENTERS, "--loss.sharded=true"],
    "sgd": [*VIT, "--optimizer.name=sgd", "--schedule.name=one_cycle"],
    "fused": [*VIT, "--optimizer.fused=true"],
    "prism": [*VIT, "--sample_selection.method=prism", "--sample_selection.warmup_epochs=0", "--micro_batch_size=2"],
    "co-teaching": [*VIT, "--sample_selection.method=co-teaching", "--micro_batch_size=2"],
    "memory": [
        *VIT,
        "--model.projector=24",
        "--loss=CrossBatchMemory",
        "--loss.loss=ContrastiveLoss",
        "--loss.size=16",
    ],
}
FIRST_EPOCH = "--stop_epoch=1"


def start(settings: list[str], run: RunFolder) -> float:
    """Train, and return the fraction of the weights and of the optimizer's state that this process holds."""
    recipe = Recipe.load(overrides=[*settings, *STILL])
    with run.new():
        trainer = create_trainer(recipe, load_training_table(recipe.settings), run)
        trainer.fit()
    state = trainer.engine.optimizer.optimizer.state
    parameters = [each for name, group in trainer.parameter_groups.items() if name != "loss" for each in group]
    moments = (each for parameter in parameters for each in state[parameter].values())
    tensors = [*parameters, *(each for each in moments if each.ndim)]  # without the numbers of steps
    return sum(own_part(each).nbytes for each in tensors) / (4 * sum(each.numel() for each in tensors))


def go_on(settings: list[str], run: RunFolder, strategy: str) -> None:
    resume(run.path, Recipe.load(overrides=[*settings, *STILL, f"--strategy={strategy}"]))


def remove_stop(run: RunFolder) -> None:
    """Let a run that stopped after its first epoch be one that was killed."""
    run.recipe.write_text(run.recipe.read_text().replace("stop_epoch: 1", "stop_epoch: null"))


def together(runs: dict[str, list[str]], settings: list[str], folder: Path, rank: int, world: int) -> dict[str, Any]:
    """The runs with both strategies, in processes as those that torchrun starts."""
    numbers = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world}
    os.environ.update({name: str(number) for name, number in numbers.items()}, MASTER_ADDR="127.0.0.1")
    fractions = {}
    for name, more in runs.items():
        for strategy in ("ddp", "fsdp"):
            run = RunFolder(folder / f"{name} {strategy}")
            fractions[f"{name} {strategy}"] = start([*settings, *more, f"--strategy={strategy}"], run)
    return fractions


def resumed(settings: list[str], folder: Path, rank: int, world: int) -> dict[str, Any]:
    """The runs, and those that begin or go on with one process and ddp."""
    found = together({"micro-batches": MICRO_BATCHES}, settings, folder, rank, world)
    settings = [*settings, *MICRO_BATCHES]
    go_on(settings, RunFolder(folder / "one first"), "fsdp")
    start([*settings, FIRST_EPOCH, "--strategy=fsdp"], RunFolder(folder / "one last"))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def results(folder: Path, photos: Path) -> Results:
    from tests.conftest import SMALL

    settings = [f"--data.source={photos}", *SMALL]
    remove_stop(train(Recipe.load(overrides=[*settings, *STILL, *MICRO_BATCHES, FIRST_EPOCH]), folder / "one first"))
    found = run_groups(partial(resumed, settings, folder), (2,), folder)
    remove_stop(RunFolder(folder / "one last"))
    go_on([*settings, *MICRO_BATCHES], RunFolder(folder / "one last"), "ddp")
    return found


def tensors_in(state: Any, prefix: str = "") -> dict[str, Tensor]:
    if isinstance(state, Tensor):
        return {prefix: state}
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    return {key: each for name, value in items for key, each in tensors_in(value, f"{prefix}.{name}").items()}


def assert_same(one: RunFolder, other: RunFolder, tolerance: float = 1e-4) -> None:
    """Assert that losses, gradients, checkpoints and models of two runs are equal to rounding."""
    logs = [pd.read_csv(run.log)[["step", "loss", "gradient norm"]] for run in (one, other)]
    pd.testing.assert_frame_equal(*logs, rtol=tolerance)
    states = [tensors_in(load_checkpoint(run.last)) for run in (one, other)]
    assert states[0].keys() == states[1].keys()
    for name, tensor in states[0].items():
        torch.testing.assert_close(states[1][name], tensor, rtol=0, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")
    models = [Embedder.from_pretrained(run.model) for run in (one, other)]
    assert models[0].config == models[1].config
    for name, value in models[0].state_dict().items():
        torch.testing.assert_close(models[1].state_dict()[name], value, rtol=0, atol=tolerance)


@pytest.mark.slow
def test_a_run_is_that_of_ddp(folder: Path, results: Results) -> None:
    assert_same(*(RunFolder(folder / f"micro-batches {strategy}") for strategy in ("ddp", "fsdp")))


@pytest.mark.slow
def test_each_process_holds_a_part(results: Results) -> None:
    fractions = [result["micro-batches fsdp"] for result in results[2]]
    assert sum(fractions) == pytest.approx(1)
    assert 0.4 < min(fractions) <= max(fractions) < 0.6
    assert [result["micro-batches ddp"] for result in results[2]] == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one first", "one last"])
def test_a_run_goes_on_with_another_strategy_and_number_of_processes(name: str, folder: Path, results: Results) -> None:
    assert_same(RunFolder(folder / name), RunFolder(folder / "micro-batches ddp"))


@pytest.mark.slow
def test_all_that_is_trained_otherwise_too(small: list[str], tmp_path: Path) -> None:
    run_groups(partial(together, LONG_RUNS, small, tmp_path), (2,), tmp_path)
    for name in LONG_RUNS:
        one, other = (RunFolder(tmp_path / f"{name} {strategy}") for strategy in ("ddp", "fsdp"))
        assert_same(one, other, 1e-2 if "bf16" in str(LONG_RUNS[name]) else 1e-4)
