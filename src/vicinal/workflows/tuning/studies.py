"""What searches and grids share: beginning or continuing a study, its slots, and runs that are done once each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from vicinal.utils.console import log
from vicinal.workflows.tuning.jobs import Runner
from vicinal.workflows.tuning.processes import Start, Task
from vicinal.workflows.tuning.scheduler import WAITING, Waiting
from vicinal.workflows.tuning.study_folder import StudyFolder
from vicinal.workflows.tuning.study_recipe import StudyRecipe

if TYPE_CHECKING:
    from filelock import FileLock

    from vicinal.data.table import Table
    from vicinal.training.recipes.recipe import Recipe

MakeTables = Callable[[StudyRecipe], dict[str, "Table"]]


def open_study(
    folder: StudyFolder,
    given: StudyRecipe | None,
    section: str,
    settings: Mapping[str, Any],
    fixed: tuple[str, ...],
    make_tables: MakeTables,
    allow_imports: Sequence[str] = (),
) -> StudyRecipe:
    """Begin a study in a folder, or continue the one that is there, and return its recipe.

    Args:
        folder: of the study.
        given: the recipe with what varies; None: that of the study that is there.
        section: `search` or `grid`.
        settings: the options of the study.
        fixed: the options that must be those of the study that is there.
        make_tables: name -> table of the runs of a new study.
        allow_imports: packages whose classes a recipe may name, where none is given.

    Raises:
        InputError: the recipe is invalid, its data cannot be divided so, or the folder holds something else.
    """
    from vicinal.training.recipes.recipe import Recipe

    folder.check_verb(section)
    if given is None:
        folder.check_study()
        return folder.own_recipe(section, tuple(allow_imports))
    given.check(Recipe.schema(), Recipe.verb)
    tables = {} if folder.recipe.is_file() else make_tables(given)
    with folder.creating() as is_new:
        if is_new:
            folder.create(given, settings, tables)
        else:
            folder.check_same(given, settings, fixed)
            folder.store(section, settings)
    return given


def make_runner(
    folder: StudyFolder, study: StudyRecipe, recipe: Recipe, jobs: int, start: Start, is_stopping: Callable[[], bool]
) -> Runner:
    """The runner of a study, with a GPU for each job where there are several, and equally many threads on a CPU."""
    threads = max(1, (os.cpu_count() or 1) // jobs) if jobs > 1 else None
    devices = _devices(recipe) if jobs > 1 else []
    return Runner(folder, start, is_stopping, devices, threads, study.allow_imports)


def _devices(recipe: Recipe) -> list[str]:
    """The GPUs of this machine, if each run takes one."""
    if recipe.settings.accelerator == "cpu" or recipe.settings.num_processes > 1:
        return []
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]


class JobQueue:
    """Runs of a study that are done once each, by any of the commands that work on it.

    Args:
        runner: of the study.
        tasks: name of the result -> makes the task that writes it, for a slot.

    Attributes:
        failures: the reason why runs of this command failed, by name. The next command tries them again.
    """

    def __init__(self, runner: Runner, tasks: Mapping[str, Callable[[int], Task[str]]]) -> None:
        self._runner, self._tasks = runner, tasks
        self._attempted: set[str] = set()
        self.failures: dict[str, str] = {}

    @property
    def pending(self) -> list[str]:
        """The names that have no result yet and were not attempted by this command."""
        return [each for each in self._tasks if each not in self._attempted and self._runner.result(each) is None]

    def next(self, slot: int) -> Task[None] | Waiting | None:
        """The next run, as :func:`~vicinal.workflows.tuning.scheduler.run_tasks` wants it."""
        pending = self.pending
        for name in pending:
            lock = self._runner.folder.claim(name)
            if lock is not None:
                self._attempted.add(name)
                return self._run(name, lock, slot)
        return WAITING if pending else None

    def _run(self, name: str, lock: FileLock, slot: int) -> Task[None]:
        try:
            is_done = self._runner.result(name) is not None  # by another command, just now
            failure = "" if is_done else (yield from self._tasks[name](slot))
            if failure:
                self.failures[name] = failure
                log(f"{name} failed: {failure}")
        finally:
            lock.release()


@contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """In this context, the first Ctrl-C or SIGTERM asks the runs of the study to stop; whether it has."""
    from vicinal.training.interrupt import StopRequest

    with StopRequest() as stop:
        yield lambda: stop.requested
