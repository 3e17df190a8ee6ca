"""The best trials of a search, trained with further seeds, and the best one of these."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from vicinal.workflows.tuning.jobs import curve_of
from vicinal.workflows.tuning.processes import Task
from vicinal.workflows.tuning.scores import Best, best_of, mean_curve
from vicinal.workflows.tuning.search import Search
from vicinal.workflows.tuning.studies import JobQueue
from vicinal.workflows.tuning.trials import trial_name

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial


class BestTrial(NamedTuple):
    """One of the best trials.

    Attributes:
        number: of the trial.
        values: its settings.
        best: the best score of the mean over its seeds and folds, and its epoch.
        seed_scores: the best score with each seed.
    """

    number: int
    values: dict[str, Any]
    best: Best
    seed_scores: tuple[float, ...]


def seed_queue(search: Search) -> JobQueue:
    """The runs of the best trials with further seeds; none with a single seed."""
    runs = {name: (trial, seed) for trial in _top(search) for seed, name in _names(search, trial).items()}
    return JobQueue(search.runner, {name: partial(_train, search, name, *run) for name, run in runs.items()})


def _train(search: Search, name: str, trial: FrozenTrial, seed: int, slot: int) -> Task[str]:
    recipe = search.study.recipe(search.trials.values_of(trial), seed=search.base.settings.seed + seed)
    outcome = yield from search.train(name, recipe, slot)
    if outcome.status == "finished":
        search.delete_weights(name)
    return outcome.reason


def best_trials(search: Search) -> list[BestTrial]:
    """The trials among which the seeds decide, the best one first."""
    return sorted((_scored(search, trial) for trial in _top(search)), key=lambda each: -each.best.score)


def _scored(search: Search, trial: FrozenTrial) -> BestTrial:
    names = [trial_name(trial.number), *_names(search, trial).values()]
    curves = [curve_of(result) for name in names if (result := search.runner.result(name)) is not None]
    scores = tuple(best_of(curve).score for curve in curves)
    return BestTrial(trial.number, search.trials.values_of(trial), best_of(mean_curve(curves)), scores)


def _top(search: Search) -> list[FrozenTrial]:
    return search.trials.distinct()[: search.settings.top if search.settings.seeds > 1 else 1]


def _names(search: Search, trial: FrozenTrial) -> dict[int, str]:
    """The names of the runs of a trial with further seeds."""
    return {seed: f"seeds/{trial.number:03d}_{seed}" for seed in range(1, search.settings.seeds)}
