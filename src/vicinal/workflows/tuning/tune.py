"""Searching for settings on held-out training classes, and replaying the best ones on all training classes."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vicinal.data import load_table
from vicinal.report.page.study import State, StudyTrial, shown_value, states_text, write_study_page
from vicinal.training.processes import StopRequest
from vicinal.training.recipes.recipe_file import RecipeFile
from vicinal.utils.console import log
from vicinal.utils.errors import InputError, TrainingStoppedError, prefixed_errors
from vicinal.utils.files import write_bytes
from vicinal.utils.plain_yaml import dump_yaml
from vicinal.workflows.settings import TuneSettings
from vicinal.workflows.tuning import runs, study_folder, trials
from vicinal.workflows.tuning.study_recipe import StudyRecipe

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

    from vicinal.data.table import Table
    from vicinal.training.recipes.recipe import Recipe

SECTION = "search"
MAX_FAILURES = 5  # of the first trials, after which the others would fail too
EPOCH = "epoch"
STATES: dict[str, State] = {
    "COMPLETE": "complete", "PRUNED": "ended early", "FAIL": "failed", "RUNNING": "running", "WAITING": "running",
}  # fmt: skip


def tune(
    recipe: str | Path | None,
    out: str | Path,
    settings: TuneSettings | None = None,
    overrides: Sequence[str] = (),
    allow_imports: Sequence[str] = (),
    start: runs.Start = runs.start_process,
) -> TuneResult:
    """Search for the settings of a recipe by their scores on training classes that are held out.

    The trials are ordinary training runs, each in a process of its own. Their tables do not have the test split. With
    `replay`, the best settings are then trained on all training classes, until the epoch that was the best one, and
    that model is evaluated on the test split, once: the protocol of RS@k (Patel et al., CVPR 2022) and ProxyNCA++ (Teh
    et al., ECCV 2020).

    Args:
        recipe: the recipe file with its `search`; None, without `overrides` either, continues the study in `out`.
        out: the folder of the study. An existing study is continued; several processes may do so at a time.
        settings: the options of the search.
        overrides: settings of the recipe as on the command line, such as `--epochs=3` or
            `--search.optimizer.lr=[0.1, 0.2]`.
        allow_imports: packages whose classes the recipe may name, as for :meth:`vicinal.Recipe.load`.
        start: starts the command of each run.

    Returns:
        The best settings and their score, all trials, and the metrics on the test split if it was evaluated.

    Raises:
        InputError: the recipe, the search space or the data is invalid, `out` holds another study, or Optuna is not
            installed.
        TrainingStoppedError: no trial has a score, or the last run failed.
        InterruptedRunError: the study was interrupted; calling this again continues it.
    """
    trials.import_optuna()
    settings, folder = settings or TuneSettings(), study_folder.StudyFolder(Path(out))
    given, make_tables = (recipe, overrides, allow_imports), partial(_make_tables, settings=settings)
    study = study_folder.open_study(folder, SECTION, *given, asdict(settings), ("held_out",), make_tables)
    settings = replace(settings, held_out=folder.stored()["held_out"])
    if settings.replay:
        _require_test(load_table(folder.table(study_folder.FINAL)))
    with StopRequest() as stop:
        runner = runs.Runner(folder, study.base, settings.jobs, start, lambda: stop.requested, study.allow_imports)
        search = Search(study, settings, runner)
        result: TuneResult | None = None
        try:
            result = search.run()
            return result
        finally:
            if search.trials.get_trials(deepcopy=False):
                search.write_page(result or search.result())


@dataclass(frozen=True)
class TuneResult:
    """The result of a search.

    Attributes:
        metric: the metric of the scores.
        best: the number of the best trial; None: none has a score.
        trials: all trials.
        importances: the importance of each setting for the score; empty if there are too few trials.
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
        lines = [states_text(self.trials)]
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


class RankedTrial(NamedTuple):
    """A trial that has a score: the best of the mean over its seeds and folds, and the best one with each seed."""

    trial: FrozenTrial
    best: runs.Best
    seed_scores: tuple[float, ...]

    @property
    def number(self) -> int:
        return trials.first_number(self.trial)


class Search:
    """A search in progress: trials of different settings, then the best ones with further seeds."""

    def __init__(self, study: StudyRecipe, settings: TuneSettings, runner: runs.Runner) -> None:
        self.study, self.settings, self.runner, self.folder = study, settings, runner, runner.folder
        self.base = study.base.settings
        held_out = settings.held_out
        self.tables = [held_out] if held_out in ("half", "val") else [f"fold{at}" for at in range(int(held_out))]
        self.trials = trials.open_trials(self.folder, SECTION, prunes=settings.prune == "median")
        self.trials.sampler = trials.seeded_sampler(self.trials, settings, self.base.seed)
        self.seeds = trials.open_trials(self.folder, "seeds")

    def run(self) -> TuneResult:
        common = (self.settings.jobs, self.runner.is_stopping)
        trials.run_trials(self.trials, self._score, self.settings.trials, *common, on_end=self._end)
        self._require_scores()
        further = [
            {"trial": trials.first_number(trial), "seed": seed} for trial in self._top() for seed in self._further_seeds
        ]
        trials.enqueue(self.seeds, further)
        trials.run_trials(self.seeds, self._score_seed, None, *common, on_end=self._end_seed)
        best = self.ranked()[0]
        self._write_best(best)
        if self.settings.replay:
            self._replay(best)
        return self.result()

    def result(self) -> TuneResult:
        ranked, test = {each.number: each for each in self.ranked()}, self.folder.test
        return TuneResult(
            self.base.validation.metric,
            next(iter(ranked), None),
            tuple(
                self._summary(each, ranked.get(trials.first_number(each))) for each in trials.shown_trials(self.trials)
            ),
            _importances(self.trials),
            json.loads(test.read_text(encoding="utf-8")) if test.is_file() else None,
            self.folder.best,
            self.folder.page,
        )

    def write_page(self, result: TuneResult) -> None:
        write_study_page(
            result.page,
            result.trials,
            metric=result.metric,
            best=result.best,
            recipe=result.recipe.read_text(encoding="utf-8") if result.recipe.is_file() else None,
            importances=result.importances,
            test=None if result.test is None else result.test["metrics"],
            study=self.trials if len(trials.in_states(self.trials, "COMPLETE")) > 1 else None,
            title=str(result.page.parent),
        )

    def ranked(self) -> list[RankedTrial]:
        """The trials among which the seeds decide, the best one first."""
        return sorted((self._ranked(trial) for trial in self._top()), key=lambda each: -each.best.score)

    def values_of(self, trial: FrozenTrial) -> dict[str, Any]:
        """The settings of a trial, as far as it has them."""
        kept = trials.given(trial)
        return {key: each.decoded(kept[key]) for key, each in self.study.space.items() if key in kept}

    def _summary(self, trial: FrozenTrial, ranked: RankedTrial | None) -> StudyTrial:
        number, state, values = trials.first_number(trial), STATES[trial.state.name], self.values_of(trial)
        if ranked is not None:
            return StudyTrial(number, state, values, ranked.best.score, ranked.best.epoch, ranked.seed_scores)
        score, epoch = trial.value, trial.user_attrs.get(EPOCH)
        reported = trial.intermediate_values
        if state == "ended early" and reported:
            epoch = max(reported, key=lambda each: reported[each])
            score = reported[epoch]
        return StudyTrial(number, state, values, score, epoch, reason=trial.user_attrs.get(trials.REASON, ""))

    @property
    def _further_seeds(self) -> range:
        return range(1, self.settings.seeds)

    def _score(self, trial: Trial) -> float:
        """Train a trial of other settings on every division of the classes, and return its score."""
        values = {key: each.suggest(trial, key) for key, each in self.study.space.items()}
        frozen = self.trials.get_trials(deepcopy=False)[trial.number]
        duplicate = self._find_duplicate(frozen)
        if duplicate is not None and duplicate.state.name == "PRUNED":
            _prune()
        if duplicate is not None:
            curve = trials.curve_of(duplicate)
        else:
            curve = self._train(trials.trial_name(trials.first_number(frozen)), self.study.recipe(values), trial)
        return _scored(trial, curve)

    def _score_seed(self, trial: Trial) -> float:
        number, seed = (trial.suggest_int(key, 0, 2**31) for key in ("trial", "seed"))
        values = self.values_of(next(each for each in self._top() if trials.first_number(each) == number))
        recipe = self.study.recipe(values, seed=self.base.seed + seed)
        return _scored(trial, self._train(_seed_name(number, seed), recipe))

    def _train(self, name: str, recipe: Recipe, trial: Trial | None = None) -> runs.Curve:
        """Train on every division of the classes, and return the mean scores; those on the first may end the trial."""
        watch = None if trial is None else _Reporter(trial).report
        curves: list[runs.Curve] = []
        for part, table in zip(self._parts(name), self.tables, strict=True):
            curves.append(self.runner.train(part, recipe, table, None if curves else watch))
        return runs.mean_curve(curves)

    def _find_duplicate(self, trial: FrozenTrial) -> FrozenTrial | None:
        """An earlier trial with the same settings that has a score or was ended early; its runs would be the same."""
        ended = trials.in_states(self.trials, "COMPLETE", "PRUNED")
        return next((each for each in ended if each.params == trial.params and each.number < trial.number), None)

    def _end(self, trial: FrozenTrial) -> None:
        settings = ", ".join(f"{key} {shown_value(value)}" for key, value in self.values_of(trial).items())
        if trial.state.name == "COMPLETE":
            text = f"{self.base.validation.metric} {trial.value:.4f} after epoch {trial.user_attrs[EPOCH]}"
        else:
            text = "ended early" if trial.state.name == "PRUNED" else f"failed: {trial.user_attrs[trials.REASON]}"
        log(f"trial {trials.first_number(trial)} ({settings}): {text}")
        self._delete_weights(trials.trial_name(trials.first_number(trial)))
        if trial.state.name == "FAIL":
            self._check_failures()

    def _end_seed(self, trial: FrozenTrial) -> None:
        name = _seed_name(trials.given(trial)["trial"], trials.given(trial)["seed"])
        if trial.state.name == "FAIL":
            log(f"{name} failed: {trial.user_attrs[trials.REASON]}")
        self._delete_weights(name)

    def _delete_weights(self, name: str) -> None:
        for part in () if self.settings.keep_weights else self._parts(name):
            self.runner.delete_weights(part)

    def _parts(self, name: str) -> list[str]:
        return [name] if len(self.tables) == 1 else [f"{name}/{table}" for table in self.tables]

    def _failed(self) -> list[FrozenTrial]:
        return [trial for trial in trials.in_states(self.trials, "FAIL") if trials.REASON in trial.user_attrs]

    def _check_failures(self) -> None:
        """Raise TrainingStoppedError if so many trials failed without any score that the others would fail too."""
        failed = self._failed()
        if len(failed) >= MAX_FAILURES and not trials.in_states(self.trials, "COMPLETE"):
            raise TrainingStoppedError(f"{len(failed)} trials failed, the last: {failed[-1].user_attrs[trials.REASON]}")

    def _require_scores(self) -> None:
        if not trials.in_states(self.trials, "COMPLETE"):
            failed = self._failed()
            why = (
                f"the last one that failed: {failed[-1].user_attrs[trials.REASON]}"
                if failed
                else "all were ended early"
            )
            raise TrainingStoppedError(f"no trial has a score; {why}")

    def _top(self) -> list[FrozenTrial]:
        """The best trials, each combination of settings once."""
        first: dict[str, FrozenTrial] = {}
        for trial in trials.in_states(self.trials, "COMPLETE"):
            first.setdefault(str(trial.params), trial)
        best = sorted(first.values(), key=lambda trial: (-float(trial.value or 0.0), trial.number))
        return best[: self.settings.top if self.settings.seeds > 1 else 1]

    def _ranked(self, trial: FrozenTrial) -> RankedTrial:
        wanted = [{"trial": trials.first_number(trial), "seed": seed} for seed in self._further_seeds]
        others = [each for each in trials.in_states(self.seeds, "COMPLETE") if trials.given(each) in wanted]
        curves = [trials.curve_of(each) for each in (trial, *others)]
        return RankedTrial(
            trial, runs.best_of(runs.mean_curve(curves)), tuple(runs.best_of(curve).score for curve in curves)
        )

    def _write_best(self, best: RankedTrial) -> None:
        """Write the recipe of the best trial, which ends after the best epoch of its whole schedule."""
        table = load_table(self.folder.table(self.tables[0]))
        recipe = self.study.recipe(self.values_of(best.trial))
        recipe = recipe.fitted(table.subset("train"))  # all classes would allow larger batches
        config = {**recipe.config, "stop_epoch": best.best.epoch, **_counted_steps(recipe, table)}
        write_bytes(self.folder.best, dump_yaml(config).encode())

    def _replay(self, best: RankedTrial) -> None:
        """Train by the best recipe on all training classes, and evaluate on the test split, unless that was done.

        The first replay chooses the trial. After an interruption, the next replay continues with that trial, even if
        another one is better by then.
        """
        from vicinal.training.recipes.recipe import Recipe

        with self.folder.lock():
            chosen = self._chosen(best)
            if not self.folder.test.is_file():
                file = RecipeFile(self.folder.replayed, chosen["recipe"])
                recipe = Recipe.load(file, allow_imports=self.study.allow_imports)
                self.runner.train(study_folder.FINAL, recipe, study_folder.FINAL)
                metrics = self.runner.evaluate(study_folder.FINAL, runs.evaluation_words(recipe, self.settings))
                _write_json(self.folder.test, {"trial": chosen["trial"], "epoch": chosen["epoch"], "metrics": metrics})
        if chosen["trial"] != best.number:
            log(
                f"the test split was evaluated with trial {chosen['trial']}; trial {best.number} is now better, but is "
                "not evaluated on it"
            )

    def _chosen(self, best: RankedTrial) -> dict[str, Any]:
        """The trial, best epoch and recipe that the first replay chose; the current best if this is the first."""
        if not self.folder.replayed.is_file():
            recipe = RecipeFile.read(self.folder.best).values
            _write_json(self.folder.replayed, {"trial": best.number, "epoch": best.best.epoch, "recipe": recipe})
        return json.loads(self.folder.replayed.read_text(encoding="utf-8"))


class _Reporter:
    """Reports the scores of a trial to Optuna, which may end it early."""

    def __init__(self, trial: Trial) -> None:
        self._trial, self._known = trial, set[int]()

    def report(self, curve: runs.Curve) -> None:
        for epoch, score in curve.items():
            if epoch not in self._known and math.isfinite(score):
                self._trial.report(score, epoch)
                self._known.add(epoch)
        if self._known and self._trial.should_prune():
            _prune()


def _prune() -> None:
    from optuna import TrialPruned

    raise TrialPruned


def _scored(trial: Trial, curve: runs.Curve) -> float:
    best = runs.best_of(curve)
    trial.set_user_attr(trials.CURVE, {str(epoch): score for epoch, score in curve.items()})
    trial.set_user_attr(EPOCH, best.epoch)
    return best.score


def _seed_name(number: int, seed: int) -> str:
    return f"seeds/{number:03d}_{seed}"


def _counted_steps(recipe: Recipe, table: Table) -> dict[str, Any]:
    """The number of steps per epoch, where steps end the run: with more classes, a pass over them has more."""
    if recipe.settings.epochs is not None or recipe.settings.steps_per_epoch is not None:
        return {}
    from vicinal.training.training_data import steps_per_epoch  # loads torchvision

    return {"steps_per_epoch": steps_per_epoch(recipe.settings, table.subset("train"))}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    write_bytes(path, (json.dumps(content, indent=2) + "\n").encode())


def _make_tables(study: StudyRecipe, settings: TuneSettings) -> dict[str, Table]:
    """The tables of a new study, with errors for batches that they are too small for."""
    table = study_folder.load_study_table(study.base)
    if settings.replay:
        _require_test(table)
    tables = study_folder.search_tables(table, settings.held_out)
    for name, each in tables.items():
        with prefixed_errors(f"held_out = {settings.held_out}, {name}"):
            study_folder.check_table(study.base, each)
    return {**tables, study_folder.FINAL: study_folder.final_table(table)}


def _require_test(table: Table) -> None:
    if "test" not in table.splits:
        raise InputError("--replay needs a split test, which the data lacks; leave it out")


def _importances(study: Study) -> dict[str, float]:
    """The importance of each setting by fANOVA; empty if the trials are too few, or all of one score."""
    import optuna

    if len({trial.value for trial in trials.in_states(study, "COMPLETE")}) < 2:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about settings that only some trials have
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        try:
            found = optuna.importance.get_param_importances(study, evaluator=evaluator)
        except (ValueError, RuntimeError, ZeroDivisionError):  # settings that do not vary
            return {}
    return {key: float(value) for key, value in sorted(found.items(), key=lambda each: -each[1])}
