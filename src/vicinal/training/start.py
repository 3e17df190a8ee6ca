"""Starting a run, and going on with one."""

from __future__ import annotations

from pathlib import Path

from vicinal.data import Table
from vicinal.errors import InputError
from vicinal.training.recipe import Recipe
from vicinal.training.run import RunFolder
from vicinal.training.setup import load_table
from vicinal.training.trainer import Trainer


def train(recipe: Recipe, out: str | Path) -> RunFolder:
    """Train as the recipe says into a new run folder.

    Args:
        recipe: all settings.
        out: the run's folder; must not exist yet or be empty.

    Returns:
        The run's folder, see :class:`~vicinal.training.run.RunFolder`.

    Raises:
        InputError: the recipe, the data or the folder cannot work.
        NonFiniteLossError: the loss became infinite or NaN.
        InterruptedRunError: Ctrl-C; the state is saved.
    """
    run = RunFolder(Path(out))
    run.check_new()
    table = load_table(recipe.settings)
    Trainer(recipe, table, run).fit()
    return run


def resume(out: str | Path, recipe: Recipe | None = None) -> RunFolder:
    """Continue the run in a folder from its last checkpoint; ends with the weights of a run that never stopped.

    Args:
        out: the run's folder.
        recipe: if given, must be the run's own; a folder without a run is then begun anew, so that one command line
            can start a run and restart it until it is done.

    Raises:
        InputError: there is no run, or it has another recipe. Other errors as for :func:`train`.
    """
    run = RunFolder(Path(out))
    if recipe is not None and not run.recipe.exists():
        return train(recipe, out)
    run.check_run()
    if run.embeddings.is_file():
        raise InputError(f"{run.path} is the run of a refiner; go on with vicinal refine")
    own = Recipe.of_run(run.recipe, recipe)
    Trainer(own, Table.from_parquet(run.table), run).fit()
    return run
