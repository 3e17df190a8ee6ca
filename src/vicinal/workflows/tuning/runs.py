"""One run of a study: an ordinary run folder, trained and evaluated by commands in processes of their own."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from vicinal.utils.errors import InterruptedRunError, TrainingStoppedError, one_line
from vicinal.utils.files import write_bytes
from vicinal.utils.plain_yaml import dump_yaml
from vicinal.utils.run_folder import RunFolder, read_log
from vicinal.workflows.settings import BENCHMARK_PROTOCOLS, VEHICLE_ID
from vicinal.workflows.tuning.study_folder import with_table

if TYPE_CHECKING:
    from vicinal.training.recipes.recipe import Recipe
    from vicinal.workflows.settings import SweepSettings, TuneSettings
    from vicinal.workflows.tuning.study_folder import StudyFolder

INTERRUPTED = 130  # the exit status of a command that was asked to stop, and has saved its state
PAUSE = 0.2  # seconds between two polls of a process

Curve: TypeAlias = Mapping[int, float]
"""Number of finished epochs -> score on the validation classes; the scores before training are left out."""


class Process(Protocol):
    """A process that was started: `subprocess.Popen` as far as a study needs it."""

    def poll(self) -> int | None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...
    def wait(self) -> int: ...


Start: TypeAlias = Callable[[Sequence[str], Path, "Path | None", Mapping[str, str]], Process]
"""Starts a command of Vicinal: its words, the files of its messages and of its output, environment variables."""


def start_process(words: Sequence[str], messages: Path, output: Path | None, environment: Mapping[str, str]) -> Process:
    """Start a command of Vicinal; messages are appended to their file, and the file of its output is replaced.

    Ctrl-C on a terminal reaches the study alone, which then asks its processes to save their state.
    """
    with messages.open("ab") as stderr, Path(os.devnull if output is None else output).open("wb") as stdout:
        return subprocess.Popen(
            [sys.executable, "-m", "vicinal.workflows.tuning.runs", *words],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, **environment},
            start_new_session=True,
        )


def _environments(recipe: Recipe, jobs: int) -> SimpleQueue[dict[str, str]]:
    """The environment variables of each job: a GPU where there are several, and equally many threads on a CPU."""
    free: SimpleQueue[dict[str, str]] = SimpleQueue()
    devices = _devices(recipe) if jobs > 1 else []
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    for job in range(jobs):
        environment = {"CUDA_VISIBLE_DEVICES": devices[job % len(devices)]} if devices else {}
        if jobs > 1 and "OMP_NUM_THREADS" not in os.environ:
            environment["OMP_NUM_THREADS"] = threads
        free.put(environment)
    return free


def _devices(recipe: Recipe) -> list[str]:
    if recipe.settings.accelerator == "cpu" or recipe.settings.num_processes > 1:
        return []
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(number) for number in range(torch.cuda.device_count())]


@dataclass
class Runner:
    """Runs the commands of a study; the base is its recipe without the settings that vary."""

    folder: StudyFolder
    base: Recipe
    jobs: int = 1
    start: Start = start_process
    is_stopping: Callable[[], bool] = field(default=lambda: False)
    allow_imports: Sequence[str] = ()

    def __post_init__(self) -> None:
        self._free = _environments(self.base, self.jobs)

    def train(self, name: str, recipe: Recipe, table: str, watch: Callable[[Curve], None] | None = None) -> Curve:
        """Train, or go on with a run that was interrupted, and return its validation scores.

        The name is the path of the folder of the run in the study. `watch` is called with the scores after each
        evaluation; if it raises, the run ends.
        """
        run, metric = RunFolder(self.folder.path / name), recipe.settings.validation.metric
        if not run.model.is_dir():
            self._wait_until_free(run)
            imports = [word for package in self.allow_imports for word in ("--allow_import", package)]
            words = ["train", str(self._write_recipe(name, recipe, table)), "--out", str(run.path), "--resume"]
            changed = _Watch(run.metrics, metric, watch) if watch else lambda: None
            self._run(name, [*words, *imports], changed)
        return read_curve(run.metrics, metric)

    def evaluate(self, name: str, words: Sequence[str]) -> dict[str, float]:
        """The metrics of the model of a finished run on the test split, with further options of `vicinal evaluate`."""
        output = self.folder.file(name, ".out")
        words = ["evaluate", str(self.folder.path / name), "--split", "test", "--json", *words]
        self._run(name, words, lambda: None, output)
        metrics = metrics_of(json.loads(output.read_text(encoding="utf-8")))
        output.unlink()
        return metrics

    def delete_checkpoints(self, name: str) -> None:
        """Delete the large files of a finished run except its model."""
        run = RunFolder(self.folder.path / name)
        for path in (run.last, run.best):
            path.unlink(missing_ok=True)

    def delete_weights(self, name: str) -> None:
        """Delete the large files of a run of which only the scores are needed."""
        self.delete_checkpoints(name)
        run = RunFolder(self.folder.path / name)
        run.centers.unlink(missing_ok=True)
        shutil.rmtree(run.model, ignore_errors=True)

    def _run(self, name: str, words: Sequence[str], watch: Callable[[], None], output: Path | None = None) -> None:
        """Run a command to its end; its messages are in the file of the name."""
        messages = self.folder.file(name, ".log")
        messages.parent.mkdir(parents=True, exist_ok=True)
        with self._environment() as environment:
            status = self._wait(self.start(words, messages, output, environment), watch)
        if status == INTERRUPTED or (status and self.is_stopping()):
            raise InterruptedRunError("stopped; the same command continues the study")
        if status:
            raise TrainingStoppedError(reason(messages, status))

    def _wait(self, process: Process, watch: Callable[[], None]) -> int:
        """The exit status of a process, which is asked to stop with the study, and killed if `watch` raises."""
        asked = False
        try:
            while (status := process.poll()) is None:
                if self.is_stopping() and not asked:
                    process.terminate()
                    asked = True
                watch()
                time.sleep(PAUSE)
            return status
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()

    @contextmanager
    def _environment(self) -> Iterator[dict[str, str]]:
        environment = self._free.get()
        try:
            yield environment
        finally:
            self._free.put(environment)

    def _wait_until_free(self, run: RunFolder) -> None:
        """Wait while a process of a killed study still trains in the folder, where the system does not end it."""
        from filelock import FileLock, Timeout

        while run.lock.is_file() and not self.is_stopping():
            try:
                with FileLock(run.lock).acquire(timeout=PAUSE):
                    return
            except Timeout:
                continue

    def _write_recipe(self, name: str, recipe: Recipe, table: str) -> Path:
        """Write the recipe of a run, unless the run has begun with one, in which paths may differ."""
        path = self.folder.file(name, ".yaml")
        if not path.is_file():
            config = with_table(recipe.config, self.folder.table(table).resolve())
            write_bytes(path, dump_yaml(config).encode())
        return path


class _Watch:
    def __init__(self, path: Path, metric: str, watch: Callable[[Curve], None]) -> None:
        self._path, self._metric, self._watch, self._size = path, metric, watch, -1

    def __call__(self) -> None:
        size = self._path.stat().st_size if self._path.is_file() else -1
        if size != self._size:
            self._size = size
            self._watch(read_curve(self._path, self._metric))


def reason(messages: Path, status: int) -> str:
    """Why a command failed, in one line: its last message."""
    if status < 0:
        return f"ended by signal {-status}" + (", perhaps for lack of memory" if status == -9 else "")
    text = messages.read_text(encoding="utf-8", errors="replace") if messages.is_file() else ""
    lines = [line for line in text.splitlines() if line.strip()]
    last = lines[-1].rpartition(": error: ")[2] if lines else f"exit status {status}"
    return one_line(last, 300)


class Best(NamedTuple):
    """The best score, and the number of epochs after which it was reached first."""

    score: float
    epoch: int


def read_curve(path: Path, metric: str) -> dict[int, float]:
    """The scores of a run by its `metrics.csv`; empty for a run that was just started."""
    log = read_log(path)
    if metric not in log or "epoch" not in log:
        return {}
    log = log.dropna(subset=["epoch", metric])
    return {int(epoch): float(score) for epoch, score in zip(log["epoch"], log[metric], strict=True) if epoch >= 1}


def mean_curve(curves: Sequence[Curve]) -> dict[int, float]:
    """The mean over runs, at the epochs that all of them have; runs may stop early."""
    common = sorted(set.intersection(*(set(curve) for curve in curves)))
    return {epoch: sum(curve[epoch] for curve in curves) / len(curves) for epoch in common}


def best_of(curve: Curve) -> Best:
    """The best score of a curve."""
    epoch = max(curve, key=lambda each: (curve[each], -each))
    return Best(curve[epoch], epoch)


def evaluation_words(recipe: Recipe, settings: TuneSettings | SweepSettings) -> list[str]:
    """The options of `vicinal evaluate` for the runs of a recipe: on its device, by the protocol of its benchmark."""
    words = ["--device", "cpu"] if recipe.settings.accelerator == "cpu" else []
    if BENCHMARK_PROTOCOLS.get(str(recipe.settings.data.source)) == VEHICLE_ID:
        words += ["--protocol", VEHICLE_ID]
    words += [f"--{name}" for name in ("hierarchy", "clusters") if getattr(settings, name)]
    for name in ("recall_at", "metrics"):
        values = [str(value) for value in getattr(settings, name) or ()]
        words += [f"--{name}", *values] if values else []
    return words


def metrics_of(printed: Mapping[str, object]) -> dict[str, float]:
    """The metrics over all queries, by their full names such as `coarse/mAP`, in the output of `vicinal evaluate`.

    Example:
        >>> row = {"metric": "mAP", "label_level": "label", "group": None, "value": 0.5}
        >>> metrics_of({"results": [row, {**row, "label_level": "coarse", "value": 0.75}]})
        {'mAP': 0.5, 'coarse/mAP': 0.75}
    """
    rows = [row for row in printed["results"] if row["group"] is None]  # type: ignore[attr-defined]
    levels = ["" if row["label_level"] == "label" else f"{row['label_level']}/" for row in rows]
    return {f"{level}{row['metric']}": row["value"] for level, row in zip(levels, rows, strict=True)}


if __name__ == "__main__":  # a command that ends when the study that started it ends
    from vicinal.training.processes import end_with_parent

    end_with_parent()
    runpy.run_module("vicinal", run_name="__main__", alter_sys=True)
