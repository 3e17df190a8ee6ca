"""The recipes of published results: each can be read, and says what it is."""

from __future__ import annotations

import importlib.util
import shlex
from types import ModuleType

import pytest

from tests.conftest import ROOT
from vicinal.training import Recipe, RefinerRecipe
from vicinal.workflows.tuning.study_recipe import StudyRecipe


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("update_readme", ROOT / "recipes" / "update_readme.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


SCRIPT = load_script()
RECIPES = {path.relative_to(SCRIPT.FOLDER).with_suffix("").as_posix(): path for path in SCRIPT.recipe_files()}
SECTIONS = {"tune": "search", "sweep": "grid"}
HEADERS = {name: SCRIPT.read_header(path) for name, path in RECIPES.items()}


def test_the_page_of_all_recipes_is_current() -> None:
    assert (SCRIPT.FOLDER / "README.md").read_text() == SCRIPT.readme(), "run: python recipes/update_readme.py"


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_can_be_read_and_says_what_it_is(name: str) -> None:
    header = HEADERS[name]
    assert {"title", "command", "cost", "expected"} <= set(header)
    assert "/" not in name or {"paper", "row", "evaluate"} <= set(header)
    words = shlex.split(header["command"])
    assert words[:1] == ["vicinal"]
    assert f"recipes/{name}.yaml" in words
    kind = {"train": Recipe, "refine": RefinerRecipe}.get(words[1])
    if kind is not None:
        kind.load(RECIPES[name], ["--run=run"] if kind is RefinerRecipe else [])  # the command names the run
    if words[1] in SECTIONS:
        study = StudyRecipe.read(SECTIONS[words[1]], RECIPES[name])
        study.check(Recipe.schema(), words[1])
        study.recipe({key: values.values()[0] for key, values in study.space.items()})
