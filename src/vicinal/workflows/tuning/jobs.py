"""One run of a study: its recipe, its process, its result. A run whose process was killed goes on where it was."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from vicinal.utils.files import write_bytes
from vicinal.utils.plain_yaml import dump_yaml
from vicinal.utils.run_folder import RunFolder
from vicinal.workflows.tuning.divisions import with_table
from vicinal.workflows.tuning.processes import INTERRUPTED, Start, Task, reason, run_process, start_process
from vicinal.workflows.tuning.scores import Curve, read_curve
from vicinal.workflows.tuning.study_folder import StudyFolder

if TYPE_CHECKING:
    from vicinal.training.recipes.recipe import Recipe

IsOver = Callable[[Curve], bool]
"""Whether a run is to be ended, by its scores so far."""


def never(scores: Curve) -> bool:
    """A run that is trained to its end whatever its scores."""
    return False


class Outcome(NamedTuple):
    """How a run ended: with a result, by its scores, with an error, or because the study was stopped."""

    status: Literal["finished", "pruned", "failed", "stopped"]
    result: Mapping[str, Any] = MappingProxyType({})
    reason: str = ""


@dataclass
class Runner:
    """Runs the commands of a study.

    Args:
        folder: the study.
        start: starts a command.
        is_stopping: whether the study is being stopped.
        devices: for each slot, the GPU of its processes; empty: they see all.
        num_threads: number of threads of each process; None: as PyTorch does.
        allow_imports: packages whose classes recipes may name.
    """

    folder: StudyFolder
    start: Start = start_process
    is_stopping: Callable[[], bool] = field(default=lambda: False)
    devices: Sequence[str] = ()
    num_threads: int | None = None
    allow_imports: Sequence[str] = ()

    def result(self, name: str) -> dict[str, Any] | None:
        """The result of a finished run; None before."""
        path = self.folder.file(name, ".json")
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def train(self, name: str, recipe: Recipe, table: str, slot: int, is_over: IsOver = never) -> Task[Outcome]:
        """Train, or go on with a run that was interrupted.

        Args:
            name: of the run, which is the path of its folder in the study.
            recipe: its settings.
            table: the name of its table.
            slot: the number of the slot in which it runs.
            is_over: whether to end it, asked after each evaluation.

        Returns:
            The outcome; its result is the `curve` of the validation scores, which :func:`curve_of` reads.
        """
        result = self.result(name)
        if result is not None:
            return Outcome("finished", result)
        run, metric = RunFolder(self.folder.path / name), recipe.settings.validation.metric
        yield from self._until_free(run)
        written = self._write_recipe(name, recipe, table)
        watch = _Watch(run.metrics, metric, is_over)
        outcome = yield from self.run(name, self.train_words(written, run), slot, watch)
        if outcome.status != "finished":
            return outcome
        result = {"curve": {str(epoch): score for epoch, score in read_curve(run.metrics, metric).items()}}
        self.write_result(name, result)
        return Outcome("finished", result)

    def evaluate(self, name: str, words: Sequence[str], slot: int) -> Task[Outcome]:
        """Evaluate the model of a finished run on the test split; the result is what `vicinal evaluate` prints."""
        output = self.folder.file(name, ".out")
        words = ["evaluate", str(self.folder.path / name), "--split", "test", "--json", *words]
        outcome = yield from self.run(name, words, slot, lambda: False, output)
        if outcome.status != "finished":
            return outcome
        result = json.loads(output.read_text(encoding="utf-8"))
        output.unlink()
        return Outcome("finished", result)

    def write_result(self, name: str, result: dict[str, Any]) -> None:
        """Mark a run as finished."""
        write_bytes(self.folder.file(name, ".json"), (json.dumps(result, indent=2) + "\n").encode())

    def delete_checkpoints(self, name: str) -> None:
        """Delete the large files of a finished run beside its model."""
        run = RunFolder(self.folder.path / name)
        for path in (run.last, run.best):
            path.unlink(missing_ok=True)

    def delete_weights(self, name: str) -> None:
        """Delete the large files of a run whose scores are all that is needed."""
        self.delete_checkpoints(name)
        run = RunFolder(self.folder.path / name)
        run.centers.unlink(missing_ok=True)
        shutil.rmtree(run.model, ignore_errors=True)

    def train_words(self, recipe: Path, run: RunFolder) -> list[str]:
        """The command that starts a run, or goes on with it."""
        imports = [word for package in self.allow_imports for word in ("--allow_import", package)]
        return ["train", str(recipe), "--out", str(run.path), "--resume", *imports]

    def run(
        self, name: str, words: Sequence[str], slot: int, is_over: Callable[[], bool], output: Path | None = None
    ) -> Task[Outcome]:
        """Run a command until its end, or until `is_over`; its messages are in the file of the name."""
        messages = self.folder.file(name, ".log")
        process = self.start(words, messages, output, self._environment(slot))
        status = yield from run_process(process, self.is_stopping, is_over)
        if status is None:
            return Outcome("pruned")
        if status == INTERRUPTED or (status and self.is_stopping()):
            return Outcome("stopped")
        return Outcome("failed", reason=reason(messages, status)) if status else Outcome("finished")

    def _until_free(self, run: RunFolder) -> Task[None]:
        """Wait while a process of a killed study still trains in the folder, where the system does not end it."""
        from filelock import FileLock, Timeout

        while run.lock.is_file():
            try:
                with FileLock(run.lock).acquire(timeout=0):
                    return
            except Timeout:
                yield

    def _write_recipe(self, name: str, recipe: Recipe, table: str) -> Path:
        """Write the recipe of a run, unless it has been begun with it: paths may be other ones now."""
        path = self.folder.file(name, ".yaml")
        if not path.is_file():
            config = with_table(recipe.config, self.folder.table(table).resolve())
            write_bytes(path, dump_yaml(config).encode())
        return path

    def _environment(self, slot: int) -> dict[str, str]:
        environment = {}
        if self.devices:
            environment["CUDA_VISIBLE_DEVICES"] = self.devices[slot % len(self.devices)]
        if self.num_threads is not None and "OMP_NUM_THREADS" not in os.environ:
            environment["OMP_NUM_THREADS"] = str(self.num_threads)
        return environment


def curve_of(result: Mapping[str, Any]) -> dict[int, float]:
    """The validation scores of a finished run."""
    return {int(epoch): score for epoch, score in result["curve"].items()}


class _Watch:
    """Whether a run is to be ended, asked whenever its scores have changed."""

    def __init__(self, path: Path, metric: str, is_over: IsOver) -> None:
        self._read = partial(read_curve, path, metric)
        self._path, self._is_over, self._size = path, is_over, -1

    def __call__(self) -> bool:
        size = self._path.stat().st_size if self._path.is_file() else -1
        if size == self._size:
            return False
        self._size = size
        return self._is_over(self._read())
