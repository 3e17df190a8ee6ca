"""The trials of a study, which Optuna proposes, stores, ends early and repeats. Several commands may work on them.

They are in a SQLite database. The process that works on a trial renews its heartbeat; where that stops, because the
process was killed, Optuna enqueues the trial again with its settings, and its run goes on from its last checkpoint.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vicinal.utils.errors import InputError, InterruptedRunError, TrainingStoppedError
from vicinal.utils.seeds import derive_seed
from vicinal.workflows.tuning.runs import PAUSE, Curve

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

    from vicinal.workflows.settings import TuneSettings
    from vicinal.workflows.tuning.study_folder import StudyFolder

HEARTBEAT, GRACE = 5, 20  # seconds between two heartbeats, and after which a trial without one is repeated
LOCK_SECONDS = 60  # for which a command waits for another one that writes to the database
NUM_STARTUP = 5  # full-length trials before the median rule ends others early
CURVE, METRICS, REASON, SURPLUS = "curve", "metrics", "reason", "surplus"  # attributes of a trial


def import_optuna() -> Any:
    """The module, with its messages about every trial turned off."""
    try:
        import optuna
    except ImportError:
        raise InputError("studies need Optuna, which is not installed: pip install 'vicinal[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


def open_trials(folder: StudyFolder, name: str, prunes: bool = False) -> Study:
    """Open the trials of a study, or begin them; if it `prunes`, those below the median are ended early."""
    optuna = import_optuna()
    from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
    from sqlalchemy.exc import SQLAlchemyError

    try:
        with folder.lock():  # of two commands that begin together, one would find the tables half made
            storage = RDBStorage(
                f"sqlite:///{folder.trials.resolve()}",
                engine_kwargs={"connect_args": {"timeout": LOCK_SECONDS}},
                heartbeat_interval=HEARTBEAT,
                grace_period=GRACE,
                heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(),
            )
        return optuna.create_study(
            storage=storage,
            study_name=name,
            direction="maximize",
            load_if_exists=True,
            sampler=optuna.samplers.RandomSampler(),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=NUM_STARTUP) if prunes else optuna.pruners.NopPruner(),
        )
    except (SQLAlchemyError, RuntimeError):
        raise InputError(f"{folder.trials}: not a database of trials, or damaged") from None


def seeded_sampler(study: Study, settings: TuneSettings, seed: int) -> BaseSampler:
    """Optuna's sampler of a search; each command that works on the study, which counts them, has another seed."""
    from optuna.samplers import QMCSampler, RandomSampler, TPESampler

    number = study.user_attrs.get("commands", 0)
    study.set_user_attr("commands", number + 1)
    own_seed = derive_seed(seed, number) % 2**32
    if settings.sampler == "random":
        return RandomSampler(own_seed)
    if settings.sampler == "sobol":  # whose points all commands take from one sequence
        others = RandomSampler(own_seed)  # the first point, and choices
        return QMCSampler(
            qmc_type="sobol", scramble=True, seed=seed, independent_sampler=others, warn_independent_sampling=False
        )
    return TPESampler(seed=own_seed, constant_liar=True)


def run_trials(
    study: Study,
    objective: Callable[[Trial], float],
    num_trials: int | None,
    jobs: int,
    is_stopping: Callable[[], bool],
    on_end: Callable[[FrozenTrial], None],
) -> None:
    """Run trials until enough have ended, including those of other commands; without a number, run the enqueued ones.

    A TrainingStoppedError or InputError of the objective is the reason of a failure. Raises InterruptedRunError where
    `is_stopping`, after the last trial has ended.
    """
    from optuna.storages import RetryHeartbeatStaleTrialCallback, fail_stale_trials

    def guarded(trial: Trial) -> float:
        if is_surplus(study.get_trials(deepcopy=False)[trial.number]):
            trial.set_user_attr(SURPLUS, True)
            study.stop()
            raise InputError("another command was faster")
        try:
            return objective(trial)
        except InterruptedRunError:
            study.stop()
            raise
        except (InputError, TrainingStoppedError) as error:
            trial.set_user_attr(REASON, str(error))
            raise

    def is_surplus(trial: FrozenTrial) -> bool:
        if num_trials is None:
            return "fixed_params" not in trial.system_attrs
        others = [*ended_trials(study), *in_states(study, "RUNNING")]
        return sum(each.number < trial.number for each in others) >= num_trials

    def ended(study: Study, trial: FrozenTrial) -> None:
        if not _is_interrupted(trial):
            on_end(trial)
        elif SURPLUS not in trial.user_attrs:
            RetryHeartbeatStaleTrialCallback()(study, trial)

    while not is_stopping():
        running, waiting = (len(in_states(study, state)) for state in ("RUNNING", "WAITING"))
        free = waiting if num_trials is None else num_trials - len(ended_trials(study)) - running
        if free > 0:
            errors = (InputError, TrainingStoppedError)
            study.optimize(guarded, n_trials=free, n_jobs=jobs, catch=errors, callbacks=[ended])
        elif running:  # in other commands, which may still be killed
            time.sleep(PAUSE)
            fail_stale_trials(study)
        else:
            return
    raise InterruptedRunError("stopped; the same command continues the study")


def enqueue(study: Study, wanted: Sequence[Mapping[str, Any]]) -> None:
    """Enqueue the trials with these settings that have no score and are not running."""
    known = [given(trial) for trial in in_states(study, "COMPLETE", "RUNNING", "WAITING")]
    for settings in wanted:
        if dict(settings) not in known:
            study.enqueue_trial(dict(settings))


def in_states(study: Study, *names: str) -> list[FrozenTrial]:
    """The trials in some states of Optuna, by their numbers."""
    from optuna.trial import TrialState

    return study.get_trials(deepcopy=False, states=tuple(TrialState[name] for name in names))


def ended_trials(study: Study) -> list[FrozenTrial]:
    """The ended trials, without surplus and interrupted ones, which are enqueued again."""
    return [trial for trial in in_states(study, "COMPLETE", "PRUNED", "FAIL") if not _is_interrupted(trial)]


def shown_trials(study: Study) -> list[FrozenTrial]:
    """All trials except interrupted and surplus ones, by the numbers of their first attempts."""
    shown = (trial for trial in study.get_trials(deepcopy=False) if not _is_interrupted(trial))
    return sorted(shown, key=first_number)


def first_number(trial: FrozenTrial) -> int:
    """The number of a trial, or of its first attempt if it was interrupted; it names the folder of its run."""
    return int(trial.system_attrs.get("failed_trial", trial.number))


def given(trial: FrozenTrial) -> dict[str, Any]:
    """The settings of a trial, including those that it was enqueued with."""
    return {**trial.system_attrs.get("fixed_params", {}), **trial.params}


def curve_of(trial: FrozenTrial) -> Curve:
    """The validation scores of a trial that has ended."""
    return {int(epoch): score for epoch, score in trial.user_attrs[CURVE].items()}


def trial_name(number: int) -> str:
    """The path of a trial's run in the study."""
    return f"trials/{number:03d}"


def _is_interrupted(trial: FrozenTrial) -> bool:
    """Whether a trial was interrupted, or surplus because of other commands."""
    return trial.state.name == "FAIL" and REASON not in trial.user_attrs
