"""Training a recipe with every combination of some settings, and evaluating each model on the test split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vicinal.data import load_table
from vicinal.utils.errors import InputError
from vicinal.workflows.tuning.cost import Part, print_cost, run_cost
from vicinal.workflows.tuning.divisions import ALL, check_table, load_study_table
from vicinal.workflows.tuning.evaluation import evaluation_words, metrics_of
from vicinal.workflows.tuning.jobs import Runner
from vicinal.workflows.tuning.processes import Start, Task, start_process
from vicinal.workflows.tuning.scheduler import run_tasks
from vicinal.workflows.tuning.settings import SweepSettings
from vicinal.workflows.tuning.studies import JobQueue, make_runner, open_study, stopping
from vicinal.workflows.tuning.study_folder import StudyFolder
from vicinal.workflows.tuning.study_recipe import StudyRecipe
from vicinal.workflows.tuning.sweep_result import SweepCell, SweepResult

if TYPE_CHECKING:
    from vicinal.data.table import Table
    from vicinal.training.recipes.recipe import Recipe

SECTION = "grid"
FIXED = ("recall_at", "metrics", "hierarchy", "clusters")  # the metrics that are there for every cell


def sweep(
    recipe: str | Path | None,
    out: str | Path,
    settings: SweepSettings | None = None,
    overrides: Sequence[str] = (),
    allow_imports: Sequence[str] = (),
    start: Start = start_process,
) -> SweepResult:
    """Train a recipe with every combination of some settings, with several seeds, and evaluate on the test split.

    Each run is in a process of its own. All have the same classes in each split, whatever their seed.

    Args:
        recipe: the recipe file with its `grid`; None, without `overrides` either, continues the study in `out`.
        out: the folder of the study. A study that is there is continued; several processes may do so at a time.
        settings: the number of seeds, the metrics and other options.
        overrides: settings of the recipe as on the command line, such as `--epochs=3` or
            `--grid.optimizer.lr=[0.1, 0.2]`.
        allow_imports: packages whose classes the recipe may name, as for :meth:`vicinal.Recipe.load`.
        start: starts the command of each run.

    Returns:
        The metrics of every cell, their means and standard deviations over the seeds. Runs that failed are tried again
        by the next call.

    Raises:
        InputError: the recipe, a cell of the grid or the data is invalid, or `out` holds another study.
        InterruptedRunError: the study was interrupted; calling this again continues it.
    """
    settings, folder = settings or SweepSettings(), StudyFolder(Path(out))
    is_given = recipe is not None or bool(overrides)
    given = StudyRecipe.read(SECTION, recipe, overrides, allow_imports) if is_given else None
    options = {**asdict(settings), "recall_at": _listed(settings.recall_at), "metrics": _listed(settings.metrics)}
    study = open_study(folder, given, SECTION, options, FIXED, _make_tables, allow_imports)
    base = study.base
    with stopping() as is_stopping:
        return Grid(study, base, settings, make_runner(folder, study, base, settings.jobs, start, is_stopping)).run()


class Grid:
    """A grid that is under way.

    Args:
        study: the recipe and the values of its settings.
        base: the recipe without them.
        settings: the options.
        runner: of the runs.
    """

    def __init__(self, study: StudyRecipe, base: Recipe, settings: SweepSettings, runner: Runner) -> None:
        self.study, self.base, self.settings, self.runner = study, base, settings, runner
        self.cells = study.cells()
        runs = [(number, seed) for seed in range(settings.seeds) for number in range(len(self.cells))]
        self.queue = JobQueue(runner, {_result_name(*run): partial(self._train, *run) for run in runs})

    def run(self) -> SweepResult:
        """Do what is left of the study."""
        print_cost(self._cost(), self.settings.images_per_second, self.runner, self.base, ALL)
        try:
            run_tasks(self.queue.next, self.settings.jobs, self.runner.is_stopping)
        finally:
            result = self.result()
            result.draw(self.runner.folder.picture)
        return result

    def result(self) -> SweepResult:
        """The metrics of all cells so far."""
        cells = []
        for number, values in enumerate(self.cells):
            names = [_result_name(number, seed) for seed in range(self.settings.seeds)]
            results = [result for name in names if (result := self.runner.result(name)) is not None]
            failures = tuple(self.queue.failures[name] for name in names if name in self.queue.failures)
            cells.append(SweepCell(values, tuple(result["metrics"] for result in results), failures))
        metric = self.settings.metric or self.base.settings.validation.metric
        return SweepResult(tuple(self.study.space), tuple(cells), metric)

    def _train(self, number: int, seed: int, slot: int) -> Task[str]:
        """Train and evaluate one cell with one seed."""
        name = _run_name(number, seed)
        recipe = self.study.recipe(self.cells[number], seed=self.base.settings.seed + seed)
        outcome = yield from self.runner.train(name, recipe, ALL, slot)
        if outcome.status == "finished":
            outcome = yield from self.runner.evaluate(name, evaluation_words(self.base, self.settings), slot)
        if outcome.status == "finished":
            self.runner.write_result(_result_name(number, seed), {"metrics": metrics_of(outcome.result)})
            self.runner.delete_checkpoints(name)
        return outcome.reason

    def _cost(self) -> list[Part]:
        """What is left of the study, at most."""
        epochs = self.study.space.get("epochs")
        table = load_table(self.runner.folder.table(ALL))
        cost = run_cost(self.base, table, None if epochs is None else epochs.middle())
        num_left, num_cells, num_seeds = len(self.queue.pending), len(self.cells), self.settings.seeds
        whole = num_left == num_cells * num_seeds
        return [Part("grid", [(num_cells, "cell"), (num_seeds, "seed")] if whole else [(num_left, "run")], cost)]


def _make_tables(study: StudyRecipe) -> dict[str, Table]:
    """The table of a new study, with errors for cells that cannot be trained on it."""
    table = load_study_table(study.base)
    if "test" not in table.splits:
        raise InputError("the data has no split test, on which each cell is evaluated")
    for values in study.cells():
        try:
            check_table(study.recipe(values), table)
        except InputError as error:
            cell = ", ".join(f"{key} = {value}" for key, value in values.items())
            raise InputError(f"the cell {cell}: {error}") from None
    return {ALL: table}


def _run_name(number: int, seed: int) -> str:
    return f"cells/{number:03d}_{seed}"


def _result_name(number: int, seed: int) -> str:
    return f"{_run_name(number, seed)}_test"


def _listed(values: Sequence[Any] | None) -> list[Any] | None:
    return None if values is None else list(values)
