"""The best settings on all training classes, until the epoch that was best on half of them, and one look at the test.

The protocol of RS@k (Patel et al., CVPR 2022) and ProxyNCA++ (Teh et al., ECCV 2020).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vicinal.data import load_table
from vicinal.training.recipes.recipe_file import RecipeFile
from vicinal.utils.console import log
from vicinal.utils.errors import TrainingStoppedError
from vicinal.utils.files import write_bytes
from vicinal.utils.plain_yaml import dump_yaml
from vicinal.workflows.tuning.best_trials import BestTrial
from vicinal.workflows.tuning.divisions import FINAL, epoch_of
from vicinal.workflows.tuning.evaluation import evaluation_words, metrics_of
from vicinal.workflows.tuning.processes import Task
from vicinal.workflows.tuning.scheduler import run_tasks
from vicinal.workflows.tuning.search import Search
from vicinal.workflows.tuning.studies import JobQueue

if TYPE_CHECKING:
    from vicinal.data.table import Table
    from vicinal.training.recipes.recipe import Recipe

TEST = "test"  # the name of the look at the test split
REPLAY = "replay"  # the name of the file with the trial that is replayed


def write_best(search: Search, best: BestTrial) -> None:
    """Write the recipe of the best trial, which ends after the best epoch: its schedule is that of the whole run."""
    table = load_table(search.runner.folder.table(search.tables[0]))
    recipe = search.study.recipe(best.values).fitted(table.subset("train"))  # all classes would allow larger batches
    config = {**recipe.config, "stop_epoch": best.best.epoch, **_counted_steps(recipe, table)}
    write_bytes(search.runner.folder.best, dump_yaml(config).encode())


def _counted_steps(recipe: Recipe, table: Table) -> dict[str, Any]:
    """The number of steps per epoch, where steps end the run: with more classes, a pass over them has more."""
    if recipe.settings.epochs is not None or recipe.settings.steps_per_epoch is not None:
        return {}
    return {"steps_per_epoch": epoch_of(recipe, table).num_steps}


def replay(search: Search, best: BestTrial) -> None:
    """Train by the best recipe on all training classes, and evaluate on the test split, unless that was done before.

    The first replay chooses the trial. Where it was interrupted, the next one goes on with that trial, though another
    one may be better by then.

    Raises:
        TrainingStoppedError: one of the two failed.
    """
    from vicinal.training.recipes.recipe import Recipe

    chosen = _choose(search, best)
    file = RecipeFile(search.runner.folder.file(REPLAY, ".json"), chosen["recipe"])
    recipe = Recipe.load(file, allow_imports=search.study.allow_imports)

    def train(slot: int) -> Task[str]:
        outcome = yield from search.runner.train(FINAL, recipe, FINAL, slot)
        return outcome.reason

    def look(slot: int) -> Task[str]:
        outcome = yield from search.runner.evaluate(FINAL, evaluation_words(recipe, search.settings), slot)
        if outcome.status == "finished":
            result = {"trial": chosen["trial"], "epoch": chosen["epoch"], "metrics": metrics_of(outcome.result)}
            search.runner.write_result(TEST, {**result, **outcome.result})
        return outcome.reason

    if search.runner.result(TEST) is None:
        for name, task in ((FINAL, train), (TEST, look)):
            queue = JobQueue(search.runner, {name: task})
            run_tasks(queue.next, 1, search.runner.is_stopping)
            if queue.failures:
                raise TrainingStoppedError(f"{name}: {queue.failures[name]}")
    _say_if_other(chosen, best)


def _choose(search: Search, best: BestTrial) -> dict[str, Any]:
    """The trial, its best epoch and its recipe that the first replay chose; the best ones now, if this is the first."""
    with search.runner.folder.lock(REPLAY):
        chosen = search.runner.result(REPLAY)
        if chosen is None:
            recipe = RecipeFile.read(search.runner.folder.best).values
            chosen = {"trial": best.number, "epoch": best.best.epoch, "recipe": recipe}
            search.runner.write_result(REPLAY, chosen)
    return chosen


def _say_if_other(chosen: dict[str, Any], best: BestTrial) -> None:
    if chosen["trial"] != best.number:
        log(
            f"the test split is looked at with trial {chosen['trial']}; trial {best.number} is better by now, and the "
            "split is not looked at again"
        )
