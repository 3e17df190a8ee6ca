"""`vicinal train` and `vicinal refine`: training by a recipe, and resuming it."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vicinal.cli.flags import Arguments, Parser, print_result
from vicinal.cli.inputs import check_files, check_source
from vicinal.cli.recipes import find_recipes
from vicinal.utils.console import log
from vicinal.utils.errors import InputError
from vicinal.utils.run_folder import RunFolder

if TYPE_CHECKING:
    from vicinal.training.recipes.recipe import AnyRecipe, BaseRecipe
    from vicinal.training.recipes.recipe_values import Schema

COLUMN_FLAG = re.compile(r"^--(?=(path|label)_column(=|$))")  # other verbs have these flags without the group
LOSS = "a class of vicinal.losses; its arguments are --loss.margin and the like"
METRIC = "decides which weights are best, on classes that are not trained on"


# The settings in `--help`, and their texts there; a text without a default is followed by that of the setting.
TRAIN_HELP = {
    "data.source": "folder with one folder of images per class, .csv or .parquet table, or benchmark",
    "data.fractions": "fraction of the classes per split, such as '{train: 0.6, val: 0.2, test: 0.2}'",
    "model.backbone": "model of timm, or published weights (default: {}; without GPU mobilenetv4_conv_small)",
    "model.pretrained": "start from pretrained weights",
    "model.dim": "dimension of the embeddings",
    "transform.size": "side of the images in pixels; the default depends on the backbone",
    "loss": LOSS,
    "batch_size": "images per batch (default: 128, or fewer to suit the data)",
    "samples_per_class": "images per class in a batch; 0 draws images at random (default: 4, or fewer)",
    "epochs": "passes over the training images (default: 4, or as many as take 30 steps; less below 30 classes)",
    "optimizer.lr": "learning rate; 0.0003 with 100 classes or more",
    "validation.metric": METRIC,
    "validation.patience": "evaluations without a new best score after which training stops; null: none",
    "precision": "32, bf16-mixed or 16-mixed (default: bf16-mixed on a GPU that has it, else 32)",
    "devices": "number of GPUs or processes of a node (default: 1, or as many as torchrun or SLURM started)",
}
TRAIN_EXAMPLES = """\
examples:
  vicinal train --data.source photos/ --out run
  vicinal train recipe.yaml --out run --epochs 20 --optimizer.lr 0.001"""
REFINE_HELP = {
    "embeddings": "file of embeddings of labeled images, as `vicinal embed` writes it",
    "labels": "with embeddings: file of their labels (default: those in the file or beside it)",
    "run": "instead of embeddings: folder of a training run, whose images are embedded",
    "devices": "with run: number of GPUs or processes that embed its images (default: 1)",
    "val_fraction": "fraction of the classes for validation, without a split val",
    "embedder_fraction": "with run: fraction of the classes on which a new embedder is trained",
    "refiner.depth": "number of blocks",
    "refiner.num_heads": "number of attention heads",
    "refiner.neighbors": "number of neighbors that an embedding attends to",
    "augmentation.noise": "norm of the noise added to training embeddings (default: chosen by the split val)",
    "loss": LOSS,
    "batch_size": "embeddings per batch (default: 128, or fewer to suit the data)",
    "epochs": "passes over the training embeddings",
    "optimizer.lr": "learning rate",
    "keep": "best, and none that does not help; or last, whatever it brings",
    "validation.metric": METRIC,
}
REFINE_EXAMPLES = """\
examples:
  vicinal refine --embeddings embeddings.parquet --out refiner
  vicinal refine --run run --out refiner --refiner.neighbors 16"""


class RecipeHelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=120)


def add_recipe(parser: Parser) -> None:
    """Add the flags of `vicinal train` and `vicinal refine`; all other flags are settings."""
    parser.description = (
        f"{parser.description}\n\nRECIPE is a YAML file of settings. Settings on the command line override it, and all "
        "others have their defaults."
    )
    parser.usage = f"{parser.prog} [RECIPE] --out RUN [--resume] [--SETTING VALUE ...]"
    parser.formatter_class = RecipeHelpFormatter
    parser.add_argument("--out", metavar="RUN", help="the run's folder; it must be new, or hold the run to resume")
    parser.add_argument("--resume", action="store_true", help="continue the run in RUN where it was stopped or killed")
    text = "a package or module of your own whose classes, such as losses, the recipe may name; may be repeated"
    parser.add_argument("--allow_import", metavar="PACKAGE", action="append", default=[], help=text)
    text = "list the recipes of papers' results whose first lines contain all WORDS"
    parser.add_argument("--recipes", nargs="*", metavar="WORD", help=text)
    parser.add_argument("-h", "--help", action="store_true", help="show this help")
    parser.add_argument("--help_all", action="store_true", help="show all settings")


def train(arguments: Arguments) -> None:
    """Train an embedding model on labeled images; the run folder holds the model, its recipe and its logs."""
    if _show_help(arguments):
        return
    given = _check_settings(arguments)
    data = given.get("data", {})
    _check_out(arguments)
    if not arguments.resume:  # a run keeps what it needs
        check_source(data.get("source"))
        check_files(data.get("root"))
    if _started_processes(arguments, given):
        return
    from vicinal.training.recipes.recipe import Recipe

    recipe = _load_recipe(arguments, Recipe)
    from vicinal.training import resume, train

    if recipe is None or arguments.resume:
        run = resume(arguments.out, recipe, arguments.allow_import)
    else:
        run = train(recipe, arguments.out)
    log(f"the model is in {run.model}; evaluate it with: vicinal evaluate {shlex.quote(str(run.path))} [--split test]")
    print_result(str(run.model))


def _started_processes(arguments: Arguments, given: dict[str, Any]) -> bool:
    """Train in several processes if the settings want them and no launcher started this one; return whether it did."""
    from vicinal.training.processes import needs_processes, run_in_processes
    from vicinal.training.recipes.recipe_file import RecipeFile

    run = RunFolder(Path(arguments.out))
    own = RecipeFile.read(run.recipe).values if arguments.resume and run.recipe.is_file() else {}
    text = str({**own, **given}.get("devices"))
    devices = int(text) if text.isdecimal() else 1
    if not needs_processes(devices):
        return False
    run_in_processes(arguments.words, devices, f"resume with: {run.resume_command()}")
    return True


def refine(arguments: Arguments) -> None:
    """Train a context refiner, which refines embeddings by their nearest neighbors, on finished embeddings."""
    if _show_help(arguments):
        return
    given = _check_settings(arguments)
    _check_out(arguments)
    if not arguments.resume:
        check_files(*map(given.get, ("embeddings", "labels", "run")))
    from vicinal.training.recipes.recipe import RefinerRecipe

    recipe, out = _load_recipe(arguments, RefinerRecipe), arguments.out
    from vicinal.workflows.refine import resume_refiner, train_refiner

    if recipe is None or arguments.resume:
        run = resume_refiner(out, recipe, arguments.allow_import)
    else:
        run = train_refiner(recipe, out)
    embedder = shlex.quote(str(run.embedder)) if run.embedder.is_dir() else "RUN"
    command = f"vicinal evaluate {embedder} --refiner {shlex.quote(str(run.path))}"
    log(f"the refiner is in {run.model}; evaluate it with: {command}")
    print_result(str(run.model))


def _show_help(arguments: Arguments) -> bool:
    """Print the help or the recipes that the command line asks for, if any, and return whether it does."""
    if arguments.recipes is not None:
        print_result(find_recipes(arguments.recipes))
    elif arguments.help:
        print_result(_short_help(arguments))
    elif arguments.help_all:
        from vicinal.training.recipes.recipe_classes import loss_names
        from vicinal.training.recipes.recipe_values import setting_groups, settings_help

        settings = settings_help(setting_groups(_recipe_class(arguments).schema()))
        print_result(f"{arguments.parser.format_help()}\n{settings}\nlosses: {', '.join(loss_names())}")
    elif any(word.partition("=")[0].endswith(".help") for word in arguments.rest):
        print_result(_loss_help(arguments))
    else:
        return False
    return True


def _short_help(arguments: Arguments) -> str:
    """The help with the settings that matter most, without the imports of a recipe."""
    from vicinal.training.recipes.recipe_values import default_text, setting_of

    texts, examples = (REFINE_HELP, REFINE_EXAMPLES) if _is_refine(arguments) else (TRAIN_HELP, TRAIN_EXAMPLES)
    schema, settings = recipe_schema(arguments), arguments.parser.add_argument_group("settings that matter most")
    for key, text in texts.items():
        default = default_text(setting_of(schema, key).default)
        if "(default:" not in text and default != "null":
            text = f"{text} (default: {{}})"
        settings.add_argument(f"--{key}", metavar="", help=text.replace("{}", default))
    arguments.parser.epilog = f"`{arguments.parser.prog} --help_all` shows all settings.\n\n{examples}"
    return arguments.parser.format_help().rstrip()


def _loss_help(arguments: Arguments) -> str:
    from vicinal.training.recipes.recipe_classes import OfferedClasses
    from vicinal.training.recipes.recipe_values import arguments_schema, class_help, setting_of

    words = [part for word in arguments.rest for part in word.split("=", 1)]
    position = next(number for number, word in enumerate(words) if word.endswith(".help"))
    key, path = [*words, ""][position : position + 2]
    base = setting_of(_recipe_class(arguments).schema(), "loss").base_class
    assert base is not None
    classes = OfferedClasses(arguments.allow_import)
    loss = classes.find(base, path)
    if key != "--loss.help" or loss is None:
        raise InputError(f"{key} {path}: give --loss.help and a loss: {', '.join(sorted(classes.all(base)))}")
    return class_help("loss", arguments_schema(loss)).rstrip()


def _is_refine(arguments: Arguments) -> bool:
    return arguments.verb.__name__ == "refine"


def _recipe_class(arguments: Arguments) -> type[BaseRecipe]:
    from vicinal.training import Recipe, RefinerRecipe

    return RefinerRecipe if _is_refine(arguments) else Recipe


def recipe_schema(arguments: Arguments) -> Schema:
    """The schema of the recipe without the imports of its model and losses."""
    from vicinal.training.recipes.recipe_classes import unimported_schema

    if _is_refine(arguments):
        from vicinal.training.recipes.refiner_settings import DEFAULT_LOSS, RefinerSettings

        return unimported_schema(RefinerSettings, DEFAULT_LOSS, "refiner", "models/refiner.py", "ContextRefiner")
    from vicinal.training.recipes.settings import DEFAULT_LOSS, TrainingSettings

    return unimported_schema(TrainingSettings, DEFAULT_LOSS, "model", "models/embedder.py", "Embedder")


def _check_settings(arguments: Arguments) -> dict[str, Any]:
    """The settings that were given, nested, checked before slow imports but for the values of model and loss."""
    from vicinal.training.recipes.recipe_check import RecipeCheck
    from vicinal.training.recipes.recipe_file import RecipeFile

    path, overrides = recipe_and_overrides(arguments)
    file = None if path is None else RecipeFile.read(path)
    check = RecipeCheck(recipe_schema(arguments), arguments.verb.__name__, file, overrides)
    check.read()
    if not arguments.allow_import:
        check.check_loss_name()
    if arguments.out is None:
        raise InputError("--out is missing: name the run's folder, such as --out run")
    return check.given


def _check_out(arguments: Arguments) -> None:
    run = RunFolder(Path(arguments.out))
    if not arguments.resume:
        run.check_new()
    elif not arguments.rest:
        run.check_run()


def recipe_and_overrides(arguments: Arguments) -> tuple[str | None, list[str]]:
    """The path of the recipe, None without one, and the settings on the command line."""
    words: list[str] = arguments.rest
    if not _is_refine(arguments):  # whose settings of columns are in no group
        words = [COLUMN_FLAG.sub("--data.", word) for word in words]
    return (None, words) if not words or words[0].startswith("-") else (words[0], words[1:])


def _load_recipe(arguments: Arguments, kind: type[AnyRecipe]) -> AnyRecipe | None:
    """The recipe that was given; None where a run is resumed without one."""
    path, overrides = recipe_and_overrides(arguments)
    if arguments.resume and path is None:
        if not overrides:
            return None
        recipe = RunFolder(Path(arguments.out)).recipe  # the settings that are given may only repeat those of the run
        path = str(recipe) if recipe.is_file() else None
    return kind.load(path, overrides, arguments.allow_import)
