"""The trials of a search, which Optuna proposes and ends early. Several commands may work on them at a time.

Optuna keeps them in a journal, a file to which every process appends. A trial belongs to the process that holds its
lock; if that process was killed, the next one that looks takes the trial over, with its settings and its run.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from vicinal.report.study_trial import shown_value
from vicinal.utils.errors import InputError
from vicinal.utils.seeds import derive_seed
from vicinal.workflows.tuning.scheduler import WAITING, Waiting
from vicinal.workflows.tuning.scores import Best, Curve
from vicinal.workflows.tuning.search_space import SearchSpace
from vicinal.workflows.tuning.study_folder import StudyFolder

if TYPE_CHECKING:
    from filelock import FileLock
    from optuna import Study, Trial
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial

Sampler = Literal["tpe", "random", "sobol"]
Pruner = Literal["none", "median", "hyperband"]

NUM_STARTUP = 5  # trials of all epochs before the median tells which ones are worse
EPOCH, REASON = "epoch", "reason"  # attributes of a trial


@dataclass(frozen=True, eq=False)
class ClaimedTrial:
    """A trial that this process works on.

    Attributes:
        number: of the trial, from 0.
        values: its settings.
    """

    number: int
    values: Mapping[str, Any]
    _trial: Trial
    _lock: FileLock

    def __str__(self) -> str:
        return f"trial {self.number} ({', '.join(f'{key} {shown_value(each)}' for key, each in self.values.items())})"

    @property
    def name(self) -> str:
        """The path of its run in the study."""
        return trial_name(self.number)

    def is_hopeless(self, curve: Curve) -> bool:
        """Report the scores so far, and return whether the trial should be ended."""
        known = self._trial.study.get_trials(deepcopy=False)[self.number].intermediate_values
        for epoch, score in curve.items():
            if epoch not in known and math.isfinite(score):
                self._trial.report(score, epoch)
        return bool(curve) and self._trial.should_prune()

    def finish(self, best: Best) -> None:
        """The trial has a score."""
        self._trial.set_user_attr(EPOCH, best.epoch)
        self._tell(values=best.score)

    def prune(self) -> None:
        """The trial was ended early."""
        from optuna.trial import TrialState

        self._tell(state=TrialState.PRUNED)

    def fail(self, reason: str) -> None:
        """The trial has no score, for this reason."""
        from optuna.trial import TrialState

        self._trial.set_user_attr(REASON, reason)
        self._tell(state=TrialState.FAIL)

    def release(self) -> None:
        """Leave the trial to the command that continues the study."""
        self._lock.release()

    def _tell(self, **result: Any) -> None:
        self._trial.study.tell(self._trial, **result)
        self.release()


@dataclass(eq=False)
class Trials:
    """The trials of a study.

    Args:
        folder: the study.
        space: the values of each setting.
        sampler: how settings are proposed.
        pruner: by which rule trials are ended early.
        num_epochs: number of epochs of a trial, for hyperband.
        seed: of the proposals; those of random and Sobol depend on it and the number of the trial alone.

    Raises:
        InputError: Optuna is not installed, or the journal is damaged.
    """

    folder: StudyFolder
    space: SearchSpace
    sampler: Sampler = "tpe"
    pruner: Pruner = "none"
    num_epochs: int = 1
    seed: int = 0
    study: Study = field(init=False)

    def __post_init__(self) -> None:
        optuna = import_optuna()
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        with self.folder.lock("trials"):
            lock = cast(Any, JournalLock(self.folder))
            try:
                journal = JournalFileBackend(str(self.folder.journal), lock_obj=lock)
                self.study = optuna.create_study(
                    storage=JournalStorage(journal),
                    study_name="study",
                    direction="maximize",
                    load_if_exists=True,
                    sampler=self._sampler(0),
                    pruner=self._pruner(),
                )
            except (ValueError, KeyError, LookupError) as error:
                raise InputError(f"{self.folder.journal}: not a journal of trials ({error})") from None

    @property
    def all(self) -> list[FrozenTrial]:
        """All trials, by their numbers."""
        return self.study.get_trials(deepcopy=False)

    @property
    def complete(self) -> list[FrozenTrial]:
        """The trials that have a score, the best one first."""
        from optuna.trial import TrialState

        complete = self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return sorted(complete, key=lambda trial: (-float(trial.value or 0.0), trial.number))

    @property
    def failed(self) -> list[FrozenTrial]:
        """The trials that failed, by their numbers."""
        from optuna.trial import TrialState

        return self.study.get_trials(deepcopy=False, states=(TrialState.FAIL,))

    def reason(self, trial: FrozenTrial) -> str:
        """Why a trial failed."""
        return str(trial.user_attrs.get(REASON, "unknown"))

    def distinct(self) -> list[FrozenTrial]:
        """The trials that have a score, the best one first, each combination of settings once."""
        first: dict[str, FrozenTrial] = {}
        for trial in sorted(self.complete, key=lambda each: each.number):
            first.setdefault(str(trial.params), trial)
        return [trial for trial in self.complete if first[str(trial.params)] is trial]

    def twin(self, claimed: ClaimedTrial) -> FrozenTrial | None:
        """An earlier trial with the same settings that has a score or was ended early; its runs would be the same."""
        from optuna.trial import TrialState

        ended = (TrialState.COMPLETE, TrialState.PRUNED)
        earlier = [trial for trial in self.all[: claimed.number] if trial.state in ended]
        return next((trial for trial in earlier if self.values_of(trial) == claimed.values), None)

    def values_of(self, trial: FrozenTrial) -> dict[str, Any]:
        """The settings of a trial, as far as it has them."""
        return {key: values.decoded(trial.params[key]) for key, values in self.space.items() if key in trial.params}

    def next(self, num_trials: int) -> ClaimedTrial | Waiting | None:
        """A trial of a process that was killed, or a new one; None if there are `num_trials` that have ended."""
        from optuna.trial import TrialState

        with self.folder.lock("trials"):
            trials = self.all
            unfinished = [trial for trial in trials if trial.state == TrialState.RUNNING]
            for trial in unfinished:
                lock = self.folder.claim(trial_name(trial.number))
                if lock is not None:
                    return self._claimed(trial.number, lock)
            if len(trials) >= num_trials:
                return WAITING if unfinished else None
            lock = self.folder.claim(trial_name(len(trials)))
            assert lock is not None
            return self._claimed(None, lock)

    def _claimed(self, number: int | None, lock: FileLock) -> ClaimedTrial:
        """Take over a trial, or begin a new one."""
        import optuna

        # A process that was killed may have chosen some values only; those are kept, and the others chosen now.
        self.study.sampler = self._sampler(len(self.all) if number is None else number)
        trial = self.study.ask() if number is None else optuna.Trial(self.study, self.all[number]._trial_id)
        values = {key: each.suggest(trial, key) for key, each in self.space.items()}
        return ClaimedTrial(trial.number, values, trial, lock)

    def _sampler(self, number: int) -> BaseSampler:
        """The sampler of one trial: a process that continues a study does not repeat its proposals."""
        from optuna.samplers import PartialFixedSampler, RandomSampler, TPESampler

        seed = derive_seed(self.seed, number) % 2**32
        if self.sampler == "random":
            return RandomSampler(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna 4 calls these experimental
            if self.sampler == "sobol":
                return PartialFixedSampler(self._sobol_point(number), RandomSampler(seed))
            return TPESampler(seed=seed, constant_liar=True)

    def _sobol_point(self, number: int) -> dict[str, Any]:
        """The settings of one trial, which is a point of a scrambled Sobol sequence."""
        from scipy.stats.qmc import Sobol

        points = Sobol(len(self.space), rng=np.random.default_rng(self.seed)).random(number + 1)
        return {key: values.at(at) for (key, values), at in zip(self.space.items(), points[-1], strict=True)}

    def _pruner(self) -> BasePruner:
        from optuna.pruners import HyperbandPruner, MedianPruner, NopPruner

        if self.pruner == "median":
            return MedianPruner(n_startup_trials=NUM_STARTUP)
        if self.pruner == "hyperband":
            return HyperbandPruner(min_resource=1, max_resource=max(self.num_epochs, 1), reduction_factor=3)
        return NopPruner()


def import_optuna() -> Any:
    """The module, with its messages about every trial turned off.

    Raises:
        InputError: it is not installed.
    """
    try:
        import optuna
    except ImportError:
        raise InputError("vicinal tune needs Optuna, which is not installed: pip install 'vicinal[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def trial_name(number: int) -> str:
    """The path of a trial's run in the study.

    Example:
        >>> trial_name(7)
        'trials/007'
    """
    return f"trials/{number:03d}"


class JournalLock:
    """Held while a process appends to the journal. The system releases it when the process is killed.

    Args:
        folder: the study.
    """

    def __init__(self, folder: StudyFolder) -> None:
        self._lock, self._journal = folder.lock("journal"), folder.journal

    def acquire(self) -> bool:
        """Wait for the lock; a line that a killed process has left without its end is cut off."""
        self._lock.acquire()
        cut_unfinished_line(self._journal)
        return True

    def release(self) -> None:
        """Let other processes append."""
        self._lock.release()


def cut_unfinished_line(journal: Path) -> None:
    """Cut off the end of a journal after its last line break."""
    with journal.open("rb+") as file:
        size = file.seek(0, os.SEEK_END)
        if size and file.seek(-1, os.SEEK_END) is not None and file.read() != b"\n":
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
