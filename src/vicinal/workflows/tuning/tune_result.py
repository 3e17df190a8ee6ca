"""What a search has found, for Python, the terminal and the page."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vicinal.report.study_trial import State, StudyTrial, shown_value
from vicinal.workflows.tuning.best_trials import BestTrial, best_trials
from vicinal.workflows.tuning.replay import TEST
from vicinal.workflows.tuning.search import Search
from vicinal.workflows.tuning.search_space import Range
from vicinal.workflows.tuning.trials import EPOCH, Trials

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

STATES: dict[str, State] = {
    "COMPLETE": "complete", "PRUNED": "ended early", "FAIL": "failed", "RUNNING": "running", "WAITING": "running",
}  # fmt: skip


@dataclass(frozen=True)
class TuneResult:
    """The result of a search.

    Attributes:
        metric: the metric of the scores.
        best: the number of the best trial; None: none has a score.
        trials: all trials.
        importances: the importance of each setting for the score; empty if they are too few to tell.
        test: the metrics on the test split by name, and the trial that was replayed; None if it was not looked at.
        recipe: the file of the best recipe.
        page: the file of the page.
    """

    metric: str
    best: int | None
    trials: tuple[StudyTrial, ...]
    importances: dict[str, float]
    test: dict[str, Any] | None
    recipe: Path
    page: Path

    @property
    def best_trial(self) -> StudyTrial | None:
        """The best trial."""
        return next((trial for trial in self.trials if trial.number == self.best), None)

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {**asdict(self), "recipe": str(self.recipe), "page": str(self.page)}

    def __str__(self) -> str:
        states = [trial.state for trial in self.trials]
        counts = [f"{states.count(state)} {state}" for state in dict.fromkeys(STATES.values()) if state in states]
        lines = [f"{len(states)} trials: {', '.join(counts)}"]
        best = self.best_trial
        if best is not None:
            lines.append(f"best: trial {best.number}, {self.metric} {best.score:.4f} after epoch {best.epoch}")
            width = max((len(key) for key in best.values), default=0)
            for key, value in best.values.items():
                importance = f"   importance {self.importances[key]:.2f}" if key in self.importances else ""
                lines.append(f"  {key:{width}}  {shown_value(value)}{importance}")
        if self.test is not None:
            values = ", ".join(f"{name} {100 * value:.2f} %" for name, value in self.test["metrics"].items())
            lines.append(f"test, of trial {self.test['trial']}: {values}")
        return "\n".join([*lines, f"recipe: {self.recipe}", f"page: {self.page}"])


def tune_result(search: Search) -> TuneResult:
    """The result of a search so far."""
    best = {each.number: each for each in best_trials(search)}
    test = search.runner.result(TEST)
    return TuneResult(
        search.metric,
        next(iter(best), None),
        tuple(_summary(search.trials, trial, best.get(trial.number)) for trial in search.trials.all),
        _importances(search.trials),
        None if test is None else {key: test[key] for key in ("trial", "epoch", "metrics")},
        search.runner.folder.best,
        search.runner.folder.page,
    )


def write_tune_page(search: Search) -> None:
    """Write the page about a search so far."""
    from vicinal.report.page.study import write_study_page

    result = tune_result(search)
    recipe = result.recipe.read_text(encoding="utf-8") if result.recipe.is_file() else None
    write_study_page(
        result.page,
        result.trials,
        metric=result.metric,
        best=result.best,
        recipe=recipe,
        importances=result.importances,
        test=None if result.test is None else result.test["metrics"],
        log_keys=[key for key, values in search.study.space.items() if isinstance(values, Range) and values.log],
        title=str(search.runner.folder.path),
    )


def _summary(trials: Trials, trial: FrozenTrial, best: BestTrial | None) -> StudyTrial:
    state, values = STATES[trial.state.name], trials.values_of(trial)
    if best is not None:
        return StudyTrial(trial.number, state, values, best.best.score, best.best.epoch, best.seed_scores)
    score, epoch = trial.value, trial.user_attrs.get(EPOCH)
    reported = trial.intermediate_values
    if state == "ended early" and reported:
        epoch = max(reported, key=lambda each: reported[each])
        score = reported[epoch]
    reason = trials.reason(trial) if state == "failed" else ""
    return StudyTrial(trial.number, state, values, score, epoch, reason=reason)


def _importances(trials: Trials) -> dict[str, float]:
    """The importance of each setting by fANOVA; empty if the trials are too few, or all of one score."""
    import optuna

    scores = {trial.value for trial in trials.complete}
    if len(scores) < 2:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about settings that only some trials have
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        try:
            found = optuna.importance.get_param_importances(trials.study, evaluator=evaluator)
        except (ValueError, RuntimeError, ZeroDivisionError):  # settings that do not vary
            return {}
    return {key: float(value) for key, value in sorted(found.items(), key=lambda each: -each[1])}
