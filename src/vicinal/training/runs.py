"""Starting and resuming the training run of an embedder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vicinal.data.batches.image_dataset import UnreadableImageError
from vicinal.data.loading import load_run_table
from vicinal.data.table import Table
from vicinal.training.frozen_trainer import FrozenTrainer
from vicinal.training.recipes.recipe import Recipe
from vicinal.training.trainer import Trainer
from vicinal.training.training_data import load_training_table
from vicinal.utils.console import log
from vicinal.utils.errors import InputError
from vicinal.utils.launch import check_launch
from vicinal.utils.run_folder import RunFolder


def train(recipe: Recipe, out: str | Path) -> RunFolder:
    """Train an embedder by a recipe, into a new run folder.

    Args:
        recipe: all settings.
        out: the run's folder; it must not exist yet or be empty.

    Returns:
        The run's folder, see :class:`~vicinal.utils.run_folder.RunFolder`.

    Raises:
        InputError: the recipe, the data or the folder is invalid.
        NonFiniteLossError: the loss became infinite or NaN.
        InterruptedRunError: the run was interrupted, and its state is saved.
    """
    run, settings = RunFolder(Path(out)), recipe.settings
    check_launch(settings.devices, settings.num_nodes)
    if recipe.has_small_backbone:
        backbone = f"model.backbone = {recipe.model['backbone']}"
        log(f"no GPU found: using {backbone}, a small network; name another, such as resnet50, for higher scores")
    if settings.precision != "32" and "precision" not in recipe.given:
        log(f"precision = {settings.precision}: the network computes in bfloat16 on this GPU, the loss in float32")
    with run.new():
        _fit(recipe, load_training_table(settings), run)
    return run


def resume(out: str | Path, recipe: Recipe | None = None, allow_imports: Sequence[str] = ()) -> RunFolder:
    """Resume the run in a folder from its last checkpoint; the weights at the end are those of an uninterrupted run.

    Args:
        out: the run's folder.
        recipe: if given, it must equal that of the run, but `epochs`, `max_steps` and `validation.patience` may be
            larger, so that a finished run goes on with the schedule of the new length, and settings of machine and log
            may be others (`data.num_workers`, `devices`, `log_every` and the like). If the folder holds no run, a new
            one is started. One command line can thus start a run and restart it until it is finished.
        allow_imports: packages whose classes the run's recipe may name, as for :meth:`Recipe.load`; a run does not
            remember them.

    Raises:
        InputError: the folder has no run, or its recipe differs. Other errors are those of :func:`train`.
    """
    run = RunFolder(Path(out))
    if recipe is not None and not run.recipe.exists():
        return train(recipe, out)
    run.check_run()
    if run.embeddings.is_file():
        raise InputError(f"{run.path} is the run of a refiner; resume it with vicinal refine")
    own = Recipe.of_run(run.recipe, recipe, allow_imports)
    check_launch(own.settings.devices, own.settings.num_nodes)
    with run.in_use():
        table = load_run_table(run.table)
        own.save_changes(run.recipe)
        _fit(own, table, run)
    return run


def create_trainer(recipe: Recipe, table: Table, run: RunFolder) -> Trainer:
    """The trainer of a recipe: of the whole model, or of its head on frozen features."""
    kind = FrozenTrainer if recipe.settings.features == "frozen" else Trainer
    return kind(recipe, table, run)


def _fit(recipe: Recipe, table: Table, run: RunFolder) -> None:
    try:
        create_trainer(recipe, table, run).fit()
    except UnreadableImageError as error:
        if recipe.settings.data.on_error == "skip":  # images that were unreadable at the start are already left out
            advice = f"it was readable when the run began; put it back and resume with: {run.resume_command()}"
        else:
            advice = "--data.on_error skip leaves out such images"
        raise InputError(f"{error}; {advice}") from None
