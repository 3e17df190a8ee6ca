"""A small model, and a recipe for studies without a pause between two polls of a process."""

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.workflows.studies import write_table
from vicinal.data import ImageTransform
from vicinal.models import Embedder
from vicinal.workflows.tuning import runs
from vicinal.workflows.tuning.study_recipe import StudyRecipe


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "model"
    Embedder("test_resnet", dim=4, pretrained=False, transform=ImageTransform(size=16)).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def study_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe whose runs are made up; the working directory is that of the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runs, "PAUSE", 0)
    write_table(tmp_path / "table.parquet")
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "data: {source: table.parquet}\n"
        "model: {backbone: test_resnet, pretrained: false, dim: 16}\n"
        "transform: {size: 16}\n"
        "batch_size: 4\nsamples_per_class: 2\nepochs: 3\naccelerator: cpu\nvalidation: {metric: recall@1}\n"
    )
    return path


@pytest.fixture
def quick_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipes of trials are made of that of the study, without reading and checking each of them."""
    read = StudyRecipe.recipe

    def recipe(self: StudyRecipe, values: Mapping[str, Any] | None = None, seed: int | None = None) -> Any:
        if not values and seed is None:
            key = repr((self.file and self.file.values, self.overrides))
            BASES[key] = BASES.get(key) or read(self)
            return BASES[key]
        config = deepcopy(self.base.config)
        for name, value in {**(values or {}), **({} if seed is None else {"seed": seed})}.items():
            *groups, last = name.split(".")
            inner = config
            for group in groups:
                inner = inner[group]
            inner[last] = value
        made = SimpleNamespace(config=config, settings=self.base.settings)
        made.fitted = lambda table: made
        return made

    monkeypatch.setattr(StudyRecipe, "recipe", recipe)


BASES: dict[str, Any] = {}
