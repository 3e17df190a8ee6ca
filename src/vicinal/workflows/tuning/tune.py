"""Searching for settings on held-out training classes, and replaying the best ones on all training classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vicinal.data import load_table
from vicinal.utils.errors import InputError
from vicinal.workflows.tuning.best_trials import best_trials, seed_queue
from vicinal.workflows.tuning.cost import Part, RunCost, print_cost, run_cost
from vicinal.workflows.tuning.divisions import FINAL, check_table, final_table, load_study_table, search_tables
from vicinal.workflows.tuning.processes import Start, start_process
from vicinal.workflows.tuning.replay import TEST, replay, write_best
from vicinal.workflows.tuning.scheduler import run_tasks
from vicinal.workflows.tuning.search import Search
from vicinal.workflows.tuning.settings import TuneSettings
from vicinal.workflows.tuning.studies import make_runner, open_study, stopping
from vicinal.workflows.tuning.study_folder import StudyFolder
from vicinal.workflows.tuning.study_recipe import StudyRecipe
from vicinal.workflows.tuning.trials import import_optuna
from vicinal.workflows.tuning.tune_result import TuneResult, tune_result, write_tune_page

if TYPE_CHECKING:
    from vicinal.data.table import Table

SECTION = "search"


def tune(
    recipe: str | Path | None,
    out: str | Path,
    settings: TuneSettings | None = None,
    overrides: Sequence[str] = (),
    allow_imports: Sequence[str] = (),
    start: Start = start_process,
) -> TuneResult:
    """Search for the settings of a recipe by their scores on training classes that are held out.

    The trials are ordinary training runs, each in a process of its own. Their tables do not have the test split. With
    `replay`, the best settings are then trained on all training classes, until the epoch that was the best one, and
    that model is evaluated on the test split, once: the protocol of RS@k (Patel et al., CVPR 2022) and ProxyNCA++ (Teh
    et al., ECCV 2020).

    Args:
        recipe: the recipe file with its `search`; None, without `overrides` either, continues the study in `out`.
        out: the folder of the study. A study that is there is continued; several processes may do so at a time.
        settings: the options of the search.
        overrides: settings of the recipe as on the command line, such as `--epochs=3` or
            `--search.optimizer.lr=[0.1, 0.2]`.
        allow_imports: packages whose classes the recipe may name, as for :meth:`vicinal.Recipe.load`.
        start: starts the command of each run.

    Returns:
        The best settings and their score, all trials, and the metrics on the test split if it was looked at.

    Raises:
        InputError: the recipe, the search space or the data is invalid, `out` holds another study, or Optuna is not
            installed.
        TrainingStoppedError: no trial has a score, or the last run failed.
        InterruptedRunError: the study was interrupted; calling this again continues it.
    """
    import_optuna()
    settings, folder = settings or TuneSettings(), StudyFolder(Path(out))
    is_given = recipe is not None or bool(overrides)
    given = StudyRecipe.read(SECTION, recipe, overrides, allow_imports) if is_given else None
    make_tables = partial(_make_tables, settings=settings)
    study = open_study(folder, given, SECTION, asdict(settings), ("held_out",), make_tables, allow_imports)
    settings = replace(settings, held_out=folder.stored()["held_out"])
    if settings.replay:
        _require_test(load_table(folder.table(FINAL)))
    base = study.base
    with stopping() as is_stopping:
        runner = make_runner(folder, study, base, settings.jobs, start, is_stopping)
        search = Search(study, base, settings, runner)
        print_cost(_cost(search), settings.images_per_second, runner, base, search.tables[0])
        try:
            return _run(search)
        finally:
            if search.trials.all:
                write_tune_page(search)


def _run(search: Search) -> TuneResult:
    """Do what is left of a study."""
    jobs, is_stopping = search.settings.jobs, search.runner.is_stopping
    run_tasks(search.next, jobs, is_stopping)
    search.check_scores()
    run_tasks(seed_queue(search).next, jobs, is_stopping)
    best = best_trials(search)[0]
    write_best(search, best)
    if search.settings.replay:
        replay(search, best)
    return tune_result(search)


def _make_tables(study: StudyRecipe, settings: TuneSettings) -> dict[str, Table]:
    """The tables of a new study, with errors for batches that they are too small for."""
    table = load_study_table(study.base)
    if settings.replay:
        _require_test(table)
    tables = search_tables(table, settings.held_out)
    for name, each in tables.items():
        try:
            check_table(study.base, each)
        except InputError as error:
            raise InputError(f"held_out = {settings.held_out}, {name}: {error}") from None
    return {**tables, FINAL: final_table(table)}


def _require_test(table: Table) -> None:
    if "test" not in table.splits:
        raise InputError("the data has no split test, which replay looks at; leave out --replay")


def _cost(search: Search) -> list[Part]:
    """What is left of a study, at most."""
    settings, folder = search.settings, search.runner.folder
    epochs = search.study.space.get("epochs")
    middle = None if epochs is None else epochs.middle()
    costs = [run_cost(search.base, load_table(folder.table(name)), middle) for name in search.tables]
    mean = RunCost(*(sum(values) / len(values) for values in zip(*costs, strict=True)))
    trials = max(0, settings.trials - len(search.trials.complete) - len(search.trials.failed))
    folds = [(len(costs), "fold")] if len(costs) > 1 else []
    parts = [Part("search", [(trials, "trial"), *folds], mean)]
    if settings.seeds > 1:
        parts.append(Part("seeds", [(settings.top, "best trial"), (settings.seeds - 1, "further seed"), *folds], mean))
    if settings.replay and search.runner.result(TEST) is None:
        parts.append(Part("replay", [(1, "run")], run_cost(search.base, load_table(folder.table(FINAL)), middle)))
    return parts
