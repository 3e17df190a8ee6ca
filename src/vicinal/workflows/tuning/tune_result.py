"""The result of a search, for Python, the terminal and the page."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vicinal.report.page.study import State, StudyTrial, shown_value
from vicinal.workflows.tuning.runs import Best
from vicinal.workflows.tuning.study_folder import StudyFolder
from vicinal.workflows.tuning.study_recipe import StudyRecipe
from vicinal.workflows.tuning.trials import REASON, first_number, given, in_states, shown_trials

if TYPE_CHECKING:
    from optuna import Study
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
        test: the metrics on the test split by name, and the trial that was replayed; None if it was not evaluated.
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


def tune_result(
    folder: StudyFolder, study: StudyRecipe, trials: Study, ranked: Mapping[int, tuple[Best, tuple[float, ...]]]
) -> TuneResult:
    """The result of a search so far.

    Args:
        folder: the study.
        study: its recipe.
        trials: of the search.
        ranked: number of each of the best trials, the best one first -> its best score, and those of its seeds.
    """
    return TuneResult(
        study.base.settings.validation.metric,
        next(iter(ranked), None),
        tuple(_summary(study, trial, ranked.get(first_number(trial))) for trial in shown_trials(trials)),
        _importances(trials),
        json.loads(folder.test.read_text(encoding="utf-8")) if folder.test.is_file() else None,
        folder.best,
        folder.page,
    )


def write_tune_page(result: TuneResult, study: StudyRecipe, trials: Study) -> None:
    """Write the page about a search so far."""
    from vicinal.report.page.study import write_study_page

    write_study_page(
        result.page,
        result.trials,
        metric=result.metric,
        best=result.best,
        recipe=result.recipe.read_text(encoding="utf-8") if result.recipe.is_file() else None,
        importances=result.importances,
        test=None if result.test is None else result.test["metrics"],
        study=trials if len(in_states(trials, "COMPLETE")) > 1 else None,
        title=str(result.page.parent),
    )


def _summary(study: StudyRecipe, trial: FrozenTrial, ranked: tuple[Best, tuple[float, ...]] | None) -> StudyTrial:
    number, state, kept = first_number(trial), STATES[trial.state.name], given(trial)
    values = {key: each.decoded(kept[key]) for key, each in study.space.items() if key in kept}
    if ranked is not None:
        best, seed_scores = ranked
        return StudyTrial(number, state, values, best.score, best.epoch, seed_scores)
    score, epoch = trial.value, trial.user_attrs.get("epoch")
    reported = trial.intermediate_values
    if state == "ended early" and reported:
        epoch = max(reported, key=lambda each: reported[each])
        score = reported[epoch]
    return StudyTrial(number, state, values, score, epoch, reason=trial.user_attrs.get(REASON, ""))


def _importances(trials: Study) -> dict[str, float]:
    """The importance of each setting by fANOVA; empty if the trials are too few, or all of one score."""
    import optuna

    if len({trial.value for trial in in_states(trials, "COMPLETE")}) < 2:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about settings that only some trials have
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        try:
            found = optuna.importance.get_param_importances(trials, evaluator=evaluator)
        except (ValueError, RuntimeError, ZeroDivisionError):  # settings that do not vary
            return {}
    return {key: float(value) for key, value in sorted(found.items(), key=lambda each: -each[1])}
