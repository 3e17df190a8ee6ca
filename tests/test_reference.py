"""The reference is complete: every public name, setting and verb has a page, and the table of losses is true."""

import importlib
import importlib.util
import inspect
import re
from types import ModuleType

import pytest

import vicinal
from tests.conftest import ROOT
from vicinal import Recipe, RefinerRecipe, losses
from vicinal.cli.main import VERBS
from vicinal.losses import Loss
from vicinal.memory import CrossBatchMemory
from vicinal.mixing import SiMix
from vicinal.training.recipes.recipe import BaseRecipe
from vicinal.training.recipes.recipe_values import setting_names
from vicinal.utils.errors import InputError

REFERENCE = ROOT / "docs" / "reference"
PAGES = {path.stem: path.read_text() for path in REFERENCE.glob("*.md")}
INTERNAL = {"vicinal.report.page.markup"}  # its public names belong to another package
BASES = {"Loss", "PairLoss", "RowLoss", "RankingLoss", "CenterBasedLoss", "WeightedSum"}


def load_extension() -> ModuleType:
    pytest.importorskip("sphinx", reason="Sphinx, of the extra docs, is not installed")
    path = ROOT / "docs" / "extensions" / "generated_reference.py"
    spec = importlib.util.spec_from_file_location("generated_reference", path)
    extension = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(extension)
    return extension


def packages() -> list[str]:
    """All packages and modules that say what they offer."""
    source = ROOT / "src"
    offers = re.compile(r"^(__all__ = |.*= lazy_imports\(__name__\)$)", re.MULTILINE)
    files = [path for path in sorted((source / "vicinal").rglob("*.py")) if offers.search(path.read_text())]
    names = [".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__") for path in files]
    return [name for name in names if name != "vicinal" and name not in INTERNAL]


def test_the_build_checks_the_same_packages() -> None:
    assert {f"vicinal.{name}" for name in load_extension().PUBLIC_PACKAGES} == set(packages())


def test_every_name_of_the_top_package_is_on_its_page() -> None:
    missing = [name for name in vicinal.__all__ if not re.search(rf"`{name}\b", PAGES["vicinal"])]
    assert not missing


def test_every_verb_is_on_the_page_of_the_command() -> None:
    for verb in VERBS:
        assert f"## vicinal {verb.__name__}\n\n```{{verb-help}} {verb.__name__}\n```" in PAGES["command"]


@pytest.mark.parametrize("recipe", [Recipe, RefinerRecipe])
def test_every_setting_is_in_the_reference_of_recipes(recipe: type[BaseRecipe]) -> None:
    settings = [each for group in load_extension().groups_of(recipe.__name__) for each in group.settings]
    schema = recipe.schema()
    groups = {
        name for name in setting_names(schema) if any(each.startswith(f"{name}.") for each in setting_names(schema))
    }
    assert sorted(each.key for each in settings) == sorted({*setting_names(schema)} - groups)
    assert all(each.description for each in settings)


def rows_of_the_loss_table() -> dict[str, list[str]]:
    text = (ROOT / "docs" / "guides" / "losses.md").read_text()
    rows = re.findall(r"^\| \{py:class\}`~vicinal\.losses\.(\w+)` \|(.*)\|$", text, re.MULTILINE)
    return {name: [cell.strip() for cell in cells.split("|")] for name, cells in rows}


def accepts(wrapper: type[Loss], loss: Loss) -> bool:
    try:
        wrapper(loss, 8)  # type: ignore[call-arg]
    except InputError:
        return False
    return True


def test_every_loss_is_in_the_table() -> None:
    classes = {name for name in losses.__all__ if inspect.isclass(getattr(losses, name))}
    assert set(rows_of_the_loss_table()) == classes - BASES


@pytest.mark.parametrize("name", sorted(rows_of_the_loss_table()))
def test_the_table_says_what_a_loss_needs_and_takes(name: str) -> None:
    _paper, needs, options, _cost = rows_of_the_loss_table()[name]
    kind = getattr(losses, name)
    arguments = inspect.signature(kind).parameters
    taken = {f"`{each}`" for each in ("miner", "label_smoothing", "sample_rate", "sharded") if each in arguments}
    taken |= {"memory"} if accepts(CrossBatchMemory, kind()) else set()
    taken |= {"SiMix"} if accepts(SiMix, kind()) else set()
    assert set(filter(None, options.split(", "))) == taken
    assert ("number of classes" in needs) == issubclass(kind, losses.CenterBasedLoss)
