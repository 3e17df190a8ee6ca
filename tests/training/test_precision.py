"""The precision of a run where the recipe leaves it to the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.runs import interrupted
from vicinal.training import Recipe, resume
from vicinal.training.recipes import recipe
from vicinal.training.recipes.recipe import RefinerRecipe
from vicinal.utils.errors import InputError


@pytest.fixture
def modern_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "gpu_has_bfloat16", lambda: True)


def precision(*overrides: str) -> str:
    loaded = Recipe.load(overrides=["--data.source=digits", *overrides])
    assert loaded.config["precision"] == loaded.settings.precision
    return loaded.settings.precision


def test_auto_is_what_the_machine_computes_fastest_with_enough_digits(modern_gpu: None) -> None:
    assert precision() == precision("--precision=auto") == "bf16-mixed"
    assert precision("--accelerator=cpu") == precision("--precision=32") == "32"
    assert RefinerRecipe.load(overrides=["--embeddings=e.parquet"]).settings.precision == "32"


def test_auto_is_32_without_such_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe, "gpu_has_bfloat16", lambda: False)
    assert precision() == precision("--precision=auto") == "32"


def test_a_resumed_run_keeps_the_precision_it_began_with(small: list[str], tmp_path: Path, monkeypatch) -> None:
    settings = [*(each for each in small if not each.startswith("--accelerator")), "--transform.size=32", "--epochs=1"]
    with monkeypatch.context() as patch:
        patch.setattr(recipe, "gpu_has_bfloat16", lambda: True)
        begun = interrupted(settings, tmp_path / "run", 1)
    with pytest.raises(InputError, match=r"precision = 32 differs from the run's own bf16-mixed"):
        resume(begun.path, Recipe.load(overrides=[*settings, "--precision=32"]))
    run = resume(begun.path, Recipe.load(overrides=settings))
    assert Recipe.load(run.recipe).settings.precision == "bf16-mixed"
