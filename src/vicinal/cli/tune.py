"""`vicinal tune` and `vicinal sweep`: many training runs of one recipe with other settings."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vicinal.cli.flags import Arguments, Parser, add_settings, print_result, read_settings
from vicinal.cli.inputs import add_json, check_files, check_source
from vicinal.cli.train import RecipeHelpFormatter, recipe_and_overrides, recipe_schema
from vicinal.utils.errors import InputError, TrainingStoppedError

if TYPE_CHECKING:
    from vicinal.workflows.tuning.study_recipe import StudyRecipe

TUNE_EXAMPLES = """\
RECIPE is a recipe of `vicinal train` with the values of some settings under `search`:

  search:
    optimizer.lr: {log: [1e-5, 1e-3]}          logarithms equally likely
    loss.margin: {range: [0.0, 0.5]}           numbers; {range: [32, 128], step: 32} for every 32nd
    schedule.steps: [[25, 50], [40, 70]]       choices

examples:
  vicinal tune recipe.yaml --out study --trials 50 --prune median --jobs 4
  vicinal tune recipe.yaml --out study --search.optimizer.lr '{log: [1e-5, 1e-3]}' --seeds 3 --replay
  vicinal tune --out study --trials 100        continues the study"""
SWEEP_EXAMPLES = """\
RECIPE is a recipe of `vicinal train` with the values of one or more settings under `grid`:

  grid:
    loss.margin: [0.0, 0.1, 0.2]
    batch_size: [64, 128, 256]

examples:
  vicinal sweep recipe.yaml --out sweep --seeds 3
  vicinal sweep recipe.yaml --out sweep --grid.model.dim '[64, 128, 256, 512]' --jobs 2
  vicinal sweep --out sweep --csv              continues, and prints the table"""


def add_tune(parser: Parser) -> None:
    """Add the flags of `vicinal tune`; all other flags are settings."""
    from vicinal.workflows.settings import TuneSettings

    _add_study(parser, TuneSettings, "search", TUNE_EXAMPLES)
    add_json(parser)


def add_sweep(parser: Parser) -> None:
    """Add the flags of `vicinal sweep`; all other flags are settings."""
    from vicinal.workflows.settings import SweepSettings

    _add_study(parser, SweepSettings, "grid", SWEEP_EXAMPLES)
    printed = parser.add_mutually_exclusive_group()
    add_json(printed)
    printed.add_argument("--csv", action="store_true", help="print the table as CSV, values from 0 to 1")


def _add_study(parser: Parser, settings: type, section: str, examples: str) -> None:
    parser.formatter_class = RecipeHelpFormatter
    parser.usage = f"{parser.prog} [RECIPE] --out STUDY [--{section}.SETTING VALUES ...] [--SETTING VALUE ...]"
    parser.epilog = examples
    text = "the study's folder; an existing study is continued, by several commands at a time if wanted"
    parser.add_argument("--out", metavar="STUDY", help=text)
    add_settings(parser, settings)
    text = "a package or module of your own whose classes, such as losses, the recipe may name; may be repeated"
    parser.add_argument("--allow_import", metavar="PACKAGE", action="append", default=[], help=text)


def tune(arguments: Arguments) -> None:
    """Search for the best settings of a recipe on training classes that are held out, with Optuna."""
    from vicinal.workflows.settings import TuneSettings

    recipe, words, settings = _read(arguments, "search", TuneSettings)
    from vicinal.workflows.tuning.tune import tune

    result = tune(recipe, arguments.out, settings, words, arguments.allow_import)
    print_result(result.to_dict() if arguments.json else str(result))


def sweep(arguments: Arguments) -> None:
    """Train a recipe with every combination of some settings, and tabulate the metrics on the test split."""
    from vicinal.workflows.settings import SweepSettings

    recipe, words, settings = _read(arguments, "grid", SweepSettings)
    from vicinal.workflows.tuning.sweep import sweep

    result = sweep(recipe, arguments.out, settings, words, arguments.allow_import)
    if arguments.json:
        print_result(result.to_dict())
    else:
        print_result(result.to_csv().rstrip() if arguments.csv else str(result))
    if result.failures:
        raise TrainingStoppedError(f"{len(result.failures)} runs failed; the same command tries them again")


def _read(arguments: Arguments, section: str, kind: type) -> tuple[str | None, list[str], Any]:
    """The recipe and its settings, none where a study is continued, and the options; checked before slow imports."""
    if arguments.out is None:
        raise InputError("--out is missing: name the study's folder, such as --out study")
    from vicinal.workflows.tuning.study_folder import StudyFolder
    from vicinal.workflows.tuning.study_recipe import StudyRecipe

    folder = StudyFolder(Path(arguments.out))
    folder.check_verb(section)
    path, words = recipe_and_overrides(arguments)
    if arguments.rest:
        _check(StudyRecipe.read(section, path, words, arguments.allow_import), arguments)
        return path, words, read_settings(kind, arguments)
    folder.check_study()
    return path, words, read_settings(kind, argparse.Namespace(**{**folder.stored(), **vars(arguments)}))


def _check(study: StudyRecipe, arguments: Arguments) -> None:
    schema = recipe_schema(arguments)
    _check_flags(arguments, schema)
    check = study.check(schema, "train")  # whose help lists all settings
    if not arguments.allow_import:
        check.check_loss_name()
    if study.section == "grid":
        study.cells()
    data = check.given.get("data", {})
    check_source(data.get("source"))
    check_files(data.get("root"))


def _check_flags(arguments: Arguments, settings: Collection[str]) -> None:
    for word in arguments.rest:
        flag = word.partition("=")[0]
        near = difflib.get_close_matches(flag, arguments.parser._option_string_actions, n=1, cutoff=0.8)
        if near and flag.removeprefix("--") not in settings:
            raise InputError(f"unknown argument {flag}, did you mean {near[0]}?")
