"""The trials of a search: each is trained on every division of the classes, ended early, or fails for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vicinal.utils.console import log
from vicinal.utils.errors import InputError, TrainingStoppedError
from vicinal.workflows.tuning.jobs import IsOver, Outcome, Runner, curve_of, never
from vicinal.workflows.tuning.processes import Task
from vicinal.workflows.tuning.scheduler import Waiting
from vicinal.workflows.tuning.scores import Curve, best_of, mean_curve
from vicinal.workflows.tuning.settings import TuneSettings
from vicinal.workflows.tuning.study_recipe import StudyRecipe
from vicinal.workflows.tuning.trials import ClaimedTrial, Trials, trial_name

if TYPE_CHECKING:
    from vicinal.training.recipes.recipe import Recipe

MAX_FAILURES = 5  # of the first trials, after which the others would fail too


class Search:
    """A search that is under way.

    Args:
        study: the recipe and the values of its settings.
        base: the recipe without them.
        settings: the options.
        runner: of the runs.

    Attributes:
        metric: the metric of the scores.
        tables: the names of the divisions of the classes.
        trials: all trials.
    """

    def __init__(self, study: StudyRecipe, base: Recipe, settings: TuneSettings, runner: Runner) -> None:
        self.study, self.base, self.settings, self.runner = study, base, settings, runner
        self.metric = base.settings.validation.metric
        held_out = settings.held_out
        self.tables = [held_out] if held_out in ("half", "val") else [f"fold{at}" for at in range(int(held_out))]
        epochs = base.settings.length.last_epoch or 1
        self.trials = Trials(runner.folder, study.space, settings.sampler, settings.prune, epochs, base.settings.seed)

    def next(self, slot: int) -> Task[None] | Waiting | None:
        """The next trial, as :func:`~vicinal.workflows.tuning.scheduler.run_tasks` wants it."""
        trial = self.trials.next(self.settings.trials)
        return self._run(trial, slot) if isinstance(trial, ClaimedTrial) else trial

    def _run(self, trial: ClaimedTrial, slot: int) -> Task[None]:
        try:
            outcome = yield from self._outcome(trial, slot)
            if outcome.status == "stopped":
                return
            if outcome.status == "finished":
                best = best_of(curve_of(outcome.result))
                trial.finish(best)
                log(f"{trial}: {self.metric} {best.score:.4f} after epoch {best.epoch}")
            elif outcome.status == "pruned":
                trial.prune()
                log(f"{trial}: ended early")
            else:
                trial.fail(outcome.reason)
                log(f"{trial}: failed: {outcome.reason}")
            self.delete_weights(trial.name)
        finally:
            trial.release()
        self._check_failures()

    def _outcome(self, trial: ClaimedTrial, slot: int) -> Task[Outcome]:
        try:
            recipe = self.study.recipe(trial.values)
        except InputError as error:  # such as a batch size that does not fit the samples per class
            return Outcome("failed", reason=str(error))
        twin = self.trials.twin(trial)
        if twin is None:
            return (yield from self.train(trial.name, recipe, slot, trial.is_hopeless))
        result = self.runner.result(trial_name(twin.number))
        if result is None:
            return Outcome("pruned")
        self.runner.write_result(trial.name, result)
        return Outcome("finished", result)

    def train(self, name: str, recipe: Recipe, slot: int, is_hopeless: IsOver = never) -> Task[Outcome]:
        """Train on every division of the classes.

        Args:
            name: of the run.
            recipe: its settings.
            slot: in which it runs.
            is_hopeless: whether to end it, by the scores on the first division.

        Returns:
            The outcome; its result has the mean `curve`.
        """
        if len(self.tables) == 1:
            return (yield from self.runner.train(name, recipe, self.tables[0], slot, is_hopeless))
        curves: list[Curve] = []
        for part, table in zip(self._parts(name), self.tables, strict=True):
            is_over = never if curves else is_hopeless
            outcome = yield from self.runner.train(part, recipe, table, slot, is_over)
            if outcome.status != "finished":
                return outcome
            curves.append(curve_of(outcome.result))
        result = {"curve": {str(epoch): score for epoch, score in mean_curve(curves).items()}}
        self.runner.write_result(name, result)
        return Outcome("finished", result)

    def delete_weights(self, name: str) -> None:
        """Delete the weights of a run that has its score, unless they are to be kept."""
        for part in () if self.settings.keep_weights else self._parts(name):
            self.runner.delete_weights(part)

    def _parts(self, name: str) -> list[str]:
        """The names of the runs that a run on every division consists of."""
        return [name] if len(self.tables) == 1 else [f"{name}/{table}" for table in self.tables]

    def check_scores(self) -> None:
        """Raise TrainingStoppedError if no trial has a score."""
        if not self.trials.complete:
            failed = self.trials.failed
            why = f"the last one that failed: {self.trials.reason(failed[-1])}" if failed else "all were ended early"
            raise TrainingStoppedError(f"no trial has a score; {why}")

    def _check_failures(self) -> None:
        """Raise TrainingStoppedError if so many trials have failed, and none has not, that the others would too."""
        failed = self.trials.failed
        if len(failed) >= MAX_FAILURES and not self.trials.complete:
            raise TrainingStoppedError(f"{len(failed)} trials failed, the last: {self.trials.reason(failed[-1])}")
