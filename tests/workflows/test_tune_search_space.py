"""Search spaces: what they accept, the values they have, and the file and line of what they refuse."""

from pathlib import Path
from typing import Any

import pytest

from tests.refusals import refused_call
from vicinal.training import Recipe
from vicinal.utils.errors import InputError
from vicinal.workflows.tuning.study_recipe import Range, StudyRecipe, plain_space, read_space

SPACE: dict[str, Any] = {
    "optimizer.lr": {"log": [1e-5, 1e-3]},
    "loss": {"margin": {"range": [0.0, 0.5], "step": 0.1}, "k": [1, [2, 4], None, "all"]},
    "batch_size": {"range": [32, 128], "step": 32},
    "epochs": {"range": [1, 3]},
}


class Highest:
    """Proposes the highest number and the last choice, as a trial of Optuna would."""

    def suggest_float(self, key: str, low: float, high: float, step: float | None = None, log: bool = False) -> float:
        assert low < high
        return high

    def suggest_int(self, key: str, low: int, high: int, step: int = 1, log: bool = False) -> int:
        assert (high - low) % step == 0
        return high

    def suggest_categorical(self, key: str, choices: list[str]) -> str:
        assert all(isinstance(choice, str) for choice in choices)
        return choices[-1]


def test_values_of_a_trial() -> None:
    space = read_space(SPACE)
    found = {key: values.suggest(Highest(), key) for key, values in space.items()}  # type: ignore[arg-type]
    assert found == {"optimizer.lr": 1e-3, "loss.margin": 0.5, "loss.k": "all", "batch_size": 128, "epochs": 3}
    assert isinstance(found["epochs"], int)
    assert read_space(plain_space(space)) == space


def test_a_range_ends_with_its_last_step() -> None:
    assert Range(10, 35, 10).suggest(Highest(), "k") == 30  # type: ignore[arg-type]
    assert Range(0.0, 1.0, 0.3).values() == (0.0, 0.3, 0.6, 0.9)
    assert Range(0.0, 0.3, 0.1).values() == (0.0, 0.1, 0.2, 0.3)


def test_values_of_a_grid() -> None:
    space = read_space(SPACE)
    assert space["loss.k"].values() == (1, [2, 4], None, "all")
    assert space["epochs"].values() == (1, 2, 3)
    with pytest.raises(ValueError, match="a grid needs a list of values, or a range with a step"):
        space["optimizer.lr"].values()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"a": 3}, r"a: 3 is not a search space; give \{log"),
        ({"a": {"log": [1, 2], "range": [1, 2]}}, "is not a search space"),
        ({"a": {"log": [0, 1]}}, r"a: log: \[0, 1\] must begin above 0"),
        ({"a": {"log": [1, 2], "step": 1}}, "takes no step"),
        ({"a": {"range": [2, 1]}}, r"a: range: \[2, 1\] must have the lower number first"),
        ({"a": {"range": [1, "x"]}}, "must be two numbers"),
        ({"a": {"range": [1, float("inf")]}}, "must be two numbers"),
        ({"a": {"range": [1, 10**400]}}, "must be two numbers"),
        ({"a": {"range": [1, 2], "step": 3}}, "a: step: 3 must be above 0 and at most 1"),
        ({"a": []}, "a: choices must be a list of one value or more"),
        ({"a": [1, 2, 1]}, "a: the choice 1 is given twice"),
    ],
)
def test_impossible_spaces(values: dict[str, Any], message: str) -> None:
    refused_call(message, read_space, values)


def read(tmp_path: Path, text: str, *words: str, section: str = "search") -> StudyRecipe:
    (tmp_path / "recipe.yaml").write_text(text)
    study = StudyRecipe.read(section, tmp_path / "recipe.yaml", words)
    study.check(Recipe.schema(), "tune")
    return study


def test_the_space_of_the_command_line_is_that_of_the_file_and_more(tmp_path: Path) -> None:
    text = "epochs: 3\nsearch:\n  optimizer.lr: {log: [1e-5, 1e-3]}\n  epochs: [1, 2]\n"
    study = read(tmp_path, text, "--search.epochs", "[4, 5]", "--epochs", "9", "--search.model.dim=[8]", "--seed=1")
    assert study.space["epochs"].values() == (4, 5)
    assert list(study.space) == ["optimizer.lr", "epochs", "model.dim"]
    assert study.base.config["epochs"] == 9
    recipe = study.recipe({"optimizer.lr": 1e-4, "epochs": 4, "model.dim": 8}, seed=5)
    assert (recipe.settings.optimizer.lr, recipe.settings.epochs, recipe.settings.seed) == (1e-4, 4, 5)
    assert recipe.model["dim"] == 8


def test_classes_and_lists_can_vary(tmp_path: Path) -> None:
    words = ["--search.loss=[MarginLoss, TripletLoss]", "--search.schedule.steps=[[1, 2], [3]]"]
    study = read(tmp_path, "schedule: {steps: [1]}\n", *words, "--schedule.name=multistep")
    recipe = study.recipe({"loss": "TripletLoss", "schedule.steps": [3]})
    assert recipe.config["loss"]["class_path"] == "vicinal.losses.TripletLoss"
    assert recipe.settings.schedule.steps == [3]


@pytest.mark.parametrize(
    ("text", "words", "message"),
    [
        ("search:\n  optimizer.lrr: [1]\n", [], "search.optimizer.lrr: unknown key .*; did you mean optimizer.lr?"),
        ("search:\n  loss.tempreature: [1]\n", [], "search.loss.tempreature: unknown .*mean loss.temperature?"),
        ("search:\n  epochs: [1, many]\n", [], "search.epochs: epochs = many must be an integer"),
        ("search:\n  loss: [NoLoss]\n", [], "search.loss: loss = NoLoss is not the name of a Loss class"),
        ("epochs: 1\nsearch:\n  epochs: {log: [0, 1]}\n", [], "recipe.yaml:3: search.epochs: log: .* must begin above"),
        ("search: 3\n", [], "recipe.yaml:1: search must be a mapping"),
        ("epochs: 1\n", [], "search: no setting varies"),
        ("epochs: 1\n", ["--search.epochs=[1"], "--search.epochs=.*not YAML"),
        ("search:\n  data.source: [a, b]\n", [], "search.data.source: all runs of a study have the same data.source"),
        ("search:\n  data: [{source: a}]\n", [], "search.data: all runs of a study have the same data.source"),
        ("search:\n  data.fractions.train: [0.5]\n", [], "have the same data.fractions"),
        ("search:\n  seed: [1, 2]\n", [], "search.seed: all runs of a study have the same seed"),
        ("epochz: 1\nsearch:\n  epochs: [1]\n", [], "recipe.yaml:1: unknown key epochz"),
        ("search:\n  epochs: [1]\n", ["--optimizer.lrr=1"], "unknown key optimizer.lrr; did you mean"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line_with_their_key(tmp_path: Path, text: str, words: list[str], message: str) -> None:
    refused_call(message, read, tmp_path, text, *words)


def test_cells_of_a_grid(tmp_path: Path) -> None:
    study = read(tmp_path, "grid:\n  epochs: [1, 2]\n  model.dim: {range: [8, 24], step: 8}\n", section="grid")
    assert study.cells()[:4] == [
        {"epochs": 1, "model.dim": 8}, {"epochs": 1, "model.dim": 16}, {"epochs": 1, "model.dim": 24},
        {"epochs": 2, "model.dim": 8},
    ]  # fmt: skip
    with pytest.raises(InputError, match=r"grid.optimizer.lr: a grid needs a list of values"):
        read(tmp_path, "grid:\n  optimizer.lr: {log: [0.1, 1]}\n", section="grid").cells()


def test_a_recipe_may_have_a_search_and_a_grid_which_train_refuses(tmp_path: Path) -> None:
    text = "epochs: 1\nsearch:\n  optimizer.lr: {log: [0.1, 1]}\ngrid:\n  epochs: [1, 2]\n"
    assert read(tmp_path, text, section="grid").cells() == [{"epochs": 1}, {"epochs": 2}]
    assert list(read(tmp_path, text).space) == ["optimizer.lr"]
    refused_call(r"recipe.yaml:2: unknown key search; it is for vicinal tune", Recipe.load, tmp_path / "recipe.yaml")
