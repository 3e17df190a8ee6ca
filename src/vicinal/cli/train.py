"""`vicinal train` and `vicinal refine`: training by a recipe, and resuming it."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vicinal.cli.flags import Arguments, Parser, print_result
from vicinal.cli.inputs import check_files, check_source
from vicinal.cli.recipes import find_recipes
from vicinal.utils.console import log
from vicinal.utils.errors import InputError
from vicinal.utils.run_folder import RunFolder

if TYPE_CHECKING:
    from vicinal.training.recipes.base_recipe import AnyRecipe


COLUMN_FLAG = re.compile(r"^--(?=(path|label)_column(=|$))")  # other verbs have these flags without the group
MODELS = {"model": ("models/embedder.py", "Embedder"), "refiner": ("models/refiner.py", "ContextRefiner")}


class Help(NamedTuple):
    """What `--help` shows beside the flags: the settings that matter most, each with its default, and examples."""

    settings: dict[str, tuple[str, str]]
    examples: tuple[str, ...]


LOSS = ("NTXentLoss", "a class of vicinal.losses; its arguments are --loss.margin and the like")
METRIC = "decides which weights are best, on classes that are not trained on"

# Recipes need torch, so help does not read the defaults from them; a test compares the two.
TRAIN_HELP = Help(
    {
        "data.source": ("", "folder with one folder of images per class, .csv or .parquet table, or benchmark"),
        "data.fractions": ("", "fraction of the classes per split, such as '{train: 0.6, val: 0.2, test: 0.2}'"),
        "model.backbone": (
            "",
            "model of timm, or published weights (default: resnet50; without GPU mobilenetv4_conv_small)",
        ),
        "model.pretrained": ("true", "start from pretrained weights"),
        "model.dim": ("512", "dimension of the embeddings"),
        "transform.size": ("224", "side of the images in pixels; the default depends on the backbone"),
        "loss": LOSS,
        "batch_size": ("", "images per batch (default: 128, or fewer to suit the data)"),
        "samples_per_class": ("", "images per class in a batch; 0 draws images at random (default: 4, or fewer)"),
        "epochs": ("", "passes over the training images (default: 4, or as many as take 60 steps)"),
        "optimizer.lr": ("0.0002", "learning rate"),
        "validation.metric": ("mAP@R", METRIC),
        "validation.patience": ("10", "evaluations without a new best score after which training stops; null: none"),
        "precision": ("auto", "32, bf16-mixed or 16-mixed (default: bf16-mixed on a GPU that has it, else 32)"),
        "devices": ("", "number of GPUs or processes of a node (default: 1, or as many as torchrun or SLURM started)"),
    },
    (
        "vicinal train --data.source photos/ --out run",
        "vicinal train recipe.yaml --out run --epochs 20 --optimizer.lr 0.001",
    ),
)
REFINE_HELP = Help(
    {
        "embeddings": ("", "file of embeddings of labeled images, as `vicinal embed` writes it"),
        "labels": ("", "with embeddings: file of their labels (default: those in the file or beside it)"),
        "run": ("", "instead of embeddings: folder of a training run, whose images are embedded"),
        "devices": ("", "with run: number of GPUs or processes that embed its images (default: 1)"),
        "val_fraction": ("0.2", "fraction of the classes for validation, if there is no split val"),
        "embedder_fraction": ("0.0", "with run: fraction of the classes on which a new embedder is trained"),
        "refiner.depth": ("8", "number of blocks"),
        "refiner.num_heads": ("1", "number of attention heads"),
        "refiner.neighbors": ("8", "number of neighbors that an embedding attends to"),
        "augmentation.noise": ("", "norm of the noise added to training embeddings (default: chosen by the split val)"),
        "loss": ("SmoothAPLoss", LOSS[1]),
        "batch_size": ("", "embeddings per batch (default: 128, or fewer to suit the data)"),
        "epochs": ("15", "passes over the training embeddings"),
        "optimizer.lr": ("0.0001", "learning rate"),
        "keep": ("best", "best, and none that does not help; or last, whatever it brings"),
        "validation.metric": ("mAP@R", METRIC),
    },
    (
        "vicinal refine --embeddings embeddings.parquet --out refiner",
        "vicinal refine --run run --out refiner --refiner.neighbors 16",
    ),
)


class RecipeHelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help with one line per setting."""

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
    text = "list the recipes of papers' results whose first lines have all of the WORDS"
    parser.add_argument("--recipes", nargs="*", metavar="WORD", help=text)
    parser.add_argument("-h", "--help", action="store_true", help="show this help")
    parser.add_argument("--help_all", action="store_true", help="show all settings")


def train(arguments: Arguments) -> None:
    """Train an embedding model on labeled images; the run folder holds the model, its recipe and its logs."""
    if _show_help(arguments, TRAIN_HELP, "Recipe"):
        return
    from vicinal.training.recipes.settings import TrainingSettings

    given = _check_settings(arguments, TrainingSettings, "model")
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
    """Train in several processes if the settings want them and no launcher has started this one; whether they did."""
    from vicinal.training.processes.torchrun import needs_processes, run_in_processes
    from vicinal.training.recipes.recipe_file import RecipeFile

    run = RunFolder(Path(arguments.out))
    own = RecipeFile.read(run.recipe).values if arguments.resume and run.recipe.is_file() else {}
    text = str({**own, **given}.get("devices"))
    devices = int(text) if text.isdecimal() else 1
    if not needs_processes(devices):
        return False
    hint = f"resume with: vicinal train --out {shlex.quote(str(run.path))} --resume"
    run_in_processes(arguments.words, devices, hint)
    return True


def refine(arguments: Arguments) -> None:
    """Train a context refiner, which refines embeddings by their nearest neighbors, on finished embeddings."""
    if _show_help(arguments, REFINE_HELP, "RefinerRecipe"):
        return
    from vicinal.training.recipes.refiner_settings import RefinerSettings

    given = _check_settings(arguments, RefinerSettings, "refiner")
    _check_out(arguments)
    if not arguments.resume:
        check_files(*map(given.get, ("embeddings", "labels", "run")))
    from vicinal.training.recipes.refiner_recipe import RefinerRecipe

    recipe, out = _load_recipe(arguments, RefinerRecipe), arguments.out
    from vicinal.workflows.refine import resume_refiner, train_refiner

    if recipe is None or arguments.resume:
        run = resume_refiner(out, recipe, arguments.allow_import)
    else:
        run = train_refiner(recipe, out)
    embedder = run.embedder if run.embedder.is_dir() else "RUN"
    command = f"vicinal evaluate {embedder} --refiner {shlex.quote(str(run.path))}"
    log(f"the refiner is in {run.model}; evaluate it with: {command}")
    print_result(str(run.model))


def _show_help(arguments: Arguments, shown: Help, recipe: str) -> bool:
    """Print the help or the recipes that the command line asks for, if any, and return whether it does."""
    if arguments.recipes is not None:
        print_result(find_recipes(arguments.recipes))
    elif arguments.help:
        settings = arguments.parser.add_argument_group("settings that matter most")
        for key, (default, text) in shown.settings.items():
            settings.add_argument(f"--{key}", metavar="", help=f"{text} (default: {default})" if default else text)
        examples = "".join(f"\n  {example}" for example in shown.examples)
        arguments.parser.epilog = f"`{arguments.parser.prog} --help_all` shows all settings.\n\nexamples:{examples}"
        print_result(arguments.parser.format_help().rstrip())
    elif arguments.help_all:
        from vicinal import training

        print_result(f"{arguments.parser.format_help()}\n{getattr(training, recipe).help().rstrip()}")
    elif any(word.partition("=")[0].endswith(".help") for word in arguments.rest):
        _show_class_help(arguments, recipe)
    else:
        return False
    return True


def _show_class_help(arguments: Arguments, recipe: str) -> None:
    """Print the arguments of a loss, for `--loss.help MarginLoss`, and exit."""
    from vicinal import training
    from vicinal.training.recipes.recipe_classes import OfferedClasses, import_path

    words = [part for word in arguments.rest for part in word.split("=", 1)]
    position = next(number for number, word in enumerate(words) if word.endswith(".help"))
    key, path = [*words, ""][position : position + 2]
    kind, classes = getattr(training, recipe), OfferedClasses(arguments.allow_import)
    base = kind.schema()["loss"].base_class
    loss = classes.find(base, path)
    if key != "--loss.help" or loss is None:
        raise InputError(f"{key} {path}: give --loss.help and a loss: {', '.join(sorted(classes.all(base)))}")
    kind.parser().parse_args([f"--loss.help={import_path(loss)}"])


def _check_settings(arguments: Arguments, settings: type, model: str) -> dict[str, Any]:
    """The settings that were given, nested; raises InputError for what is wrong, before anything slow is imported.

    Args:
        arguments: the flags, and in `rest` the path of the recipe and the settings.
        settings: the dataclass of the recipe's settings.
        model: the key of the model; the values of its settings are checked later, as the loss is.
    """
    from vicinal.training.recipes.recipe_check import RecipeCheck
    from vicinal.training.recipes.recipe_classes import constructor_arguments
    from vicinal.training.recipes.recipe_file import RecipeFile
    from vicinal.training.recipes.recipe_schema import UNCHECKED, settings_schema

    path, overrides = recipe_and_overrides(arguments)
    file = None if path is None else RecipeFile.read(path)
    model_schema = dict.fromkeys(constructor_arguments(*MODELS[model]), UNCHECKED)
    schema = {**settings_schema(settings), model: model_schema, "loss": UNCHECKED}
    check = RecipeCheck(schema, arguments.verb.__name__, file, overrides)
    check.check()
    check.check_loss_name()
    if arguments.out is None:
        raise InputError("--out is missing: name the run's folder, such as --out run")
    return check.given


def _check_out(arguments: Arguments) -> None:
    """Raise InputError if the run's folder cannot be started, or resumed without a recipe."""
    run = RunFolder(Path(arguments.out))
    if not arguments.resume:
        run.check_new()
    elif not arguments.rest:
        run.check_run()


def recipe_and_overrides(arguments: Arguments) -> tuple[str | None, list[str]]:
    """The path of the recipe, None without one, and the settings on the command line."""
    words: list[str] = arguments.rest
    if arguments.verb.__name__ != "refine":  # whose settings of columns are in no group
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
