"""The recipes of published results: each can be read, and says what it is."""

from __future__ import annotations

import importlib.util
import shlex
from types import ModuleType

from tests.conftest import ROOT
from vicinal.cli.train import read_header, recipe_files
from vicinal.training import Recipe, RefinerRecipe
from vicinal.training.recipes.recipe_check import RecipeCheck
from vicinal.training.recipes.recipe_file import RecipeFile
from vicinal.workflows.tuning.study_recipe import StudyRecipe


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("update_readme", ROOT / "recipes" / "update_readme.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


SCRIPT = load_script()
RECIPES = {path.relative_to(SCRIPT.FOLDER).with_suffix("").as_posix(): path for path in recipe_files(SCRIPT.FOLDER)}
SECTIONS = {"tune": "search", "sweep": "grid"}
HEADERS = {name: read_header(path) for name, path in RECIPES.items()}
VERBS = {name: shlex.split(header["command"])[1] for name, header in HEADERS.items()}
FIRST = set({name.rpartition("/")[0]: name for name in reversed(RECIPES)}.values())
"""The first recipe of each folder."""
SCHEMAS = {"train": Recipe.schema(), "refine": RefinerRecipe.schema()}


def test_the_page_of_all_recipes_is_current() -> None:
    assert (SCRIPT.FOLDER / "README.md").read_text() == SCRIPT.readme(), "run: python recipes/update_readme.py"


def test_each_recipe_says_what_it_is_and_its_keys_are_known() -> None:
    for name, header in HEADERS.items():
        assert {"title", "command", "cost", "expected"} <= set(header), name
        assert "/" not in name or {"paper", "row", "evaluate"} <= set(header), name
        assert f"recipes/{name}.yaml" in shlex.split(header["command"]), name
        verb, file = VERBS[name], RecipeFile.read(RECIPES[name])
        if verb in SECTIONS:
            assert file.values.pop(SECTIONS[verb]), name
        RecipeCheck(SCHEMAS["refine" if verb == "refine" else "train"], verb, file, []).read()


def test_the_settings_of_each_study_are_known() -> None:
    for name, verb in VERBS.items():
        if verb in SECTIONS:
            StudyRecipe.read(SECTIONS[verb], RECIPES[name]).check(SCHEMAS["train"], verb)
