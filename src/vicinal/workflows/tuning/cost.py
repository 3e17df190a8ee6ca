"""What a study costs: the images that its runs process, and the time that this takes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from vicinal.data import load_table
from vicinal.utils.console import duration, log
from vicinal.utils.files import write_bytes
from vicinal.utils.plain_yaml import dump_yaml
from vicinal.utils.run_folder import RunFolder
from vicinal.utils.run_log import read_log
from vicinal.utils.wording import counted
from vicinal.workflows.tuning.divisions import epoch_of, with_table
from vicinal.workflows.tuning.jobs import Runner
from vicinal.workflows.tuning.processes import Task
from vicinal.workflows.tuning.scheduler import run_task

if TYPE_CHECKING:
    from vicinal.data.table import Table
    from vicinal.training.recipes.recipe import Recipe

TIMING = "timing"  # the name of the run that is timed
NUM_STEPS, SECONDS = 12, 120  # of that run; the first two steps are not counted
EVALUATED = 1 / 3  # the cost of an image that is embedded, in images that are trained on: no backward pass


class RunCost(NamedTuple):
    """The images of one run.

    Args:
        epochs: number of epochs.
        images: number of images in an epoch.
        evaluated: number of images embedded for validation in an epoch.
    """

    epochs: float
    images: float
    evaluated: float = 0.0

    @property
    def work(self) -> float:
        """The number of images that take as long to train on."""
        return self.epochs * (self.images + EVALUATED * self.evaluated)


class Part(NamedTuple):
    """A part of a study.

    Args:
        name: what it is.
        number: number of runs, in words of what they are.
        cost: of each run, on average.
    """

    name: str
    number: Sequence[tuple[int, str]]
    cost: RunCost

    @property
    def num_runs(self) -> int:
        """The number of runs."""
        product = 1
        for number, _ in self.number:
            product *= number
        return product

    def __str__(self) -> str:
        runs = " x ".join(counted(number, noun) for number, noun in self.number)
        epochs, images = self.cost.epochs, self.cost.images
        total = self.num_runs * epochs * images
        noun = "epoch" if epochs == 1 else "epochs"
        return f"{self.name}: {runs} x {epochs:g} {noun} x {images:,.0f} images = {total:,.0f} images"


def cost_lines(parts: Sequence[Part], images_per_second: float | None) -> list[str]:
    """The cost of the parts of a study, and of all together.

    Args:
        parts: of the study.
        images_per_second: that one process trains on; None if it is unknown.

    Example:
        >>> trials = Part("search", [(20, "trial")], RunCost(epochs=30, images=1000, evaluated=500))
        >>> for line in cost_lines([trials], images_per_second=100):
        ...     print(line)
        search: 20 trials x 30 epochs x 1,000 images = 600,000 images
        about 1 h 56 min for one process at 100 images/s, validation included, and some seconds more per run to start
    """
    lines = [str(part) for part in parts if part.num_runs]
    if images_per_second:
        seconds = sum(part.num_runs * part.cost.work for part in parts) / images_per_second
        end = f"at {images_per_second:,.0f} images/s, validation included, and some seconds more per run to start"
        lines.append(f"about {duration(seconds)} for one process {end}")
    return lines


def run_cost(recipe: Recipe, table: Table, epochs: float | None = None) -> RunCost:
    """The images of a run on a table, if no patience ends it.

    Args:
        recipe: of the run.
        table: its images.
        epochs: instead of those of the recipe.
    """
    settings, epoch = recipe.settings, epoch_of(recipe, table)
    limits = [epochs or settings.length.last_epoch, settings.max_steps and settings.max_steps / epoch.num_steps]
    evaluated = len(table.subset("val")) / settings.validation.every if "val" in table.splits else 0
    return RunCost(min(each for each in limits if each is not None), epoch.num_images, evaluated)


def print_cost(
    parts: Sequence[Part], images_per_second: float | None, runner: Runner, recipe: Recipe, table: str
) -> None:
    """Log what is left of a study costs, and the time that it takes.

    Args:
        parts: of the study.
        images_per_second: the speed; None: that of a run of the study, or else that of a few steps, which are timed.
        runner: of the study.
        recipe: of which a few steps are timed.
        table: the name of the table for this.
    """
    if not any(part.num_runs for part in parts):
        return
    lines = cost_lines(parts, None)
    for line in lines:
        log(line)
    speed = images_per_second or known_speed(runner)
    if speed is None:
        log("timing a few steps")
        speed = run_task(timed_speed(runner, recipe, load_table(runner.folder.table(table))))
    for line in cost_lines(parts, speed)[len(lines) :]:
        log(line)


def known_speed(runner: Runner) -> float | None:
    """The images per second of a run of the study; None if there is none yet."""
    for path in sorted(runner.folder.path.glob("*/*/**/log.csv")):
        speed = _median_speed(RunFolder(path.parent))
        if speed is not None:
            return speed
    return None


def timed_speed(runner: Runner, recipe: Recipe, table: Table) -> Task[float | None]:
    """Train a few steps in a process of its own, and return the images per second; None if that fails.

    Args:
        runner: of the study.
        recipe: to be trained.
        table: the training images.
    """
    folder, run = runner.folder, RunFolder(runner.folder.path / TIMING)
    lock = folder.claim(TIMING)
    if lock is None:  # another command times it
        return None
    try:
        table.subset("train").save(folder.table(TIMING))
        config = {**with_table(recipe.config, folder.table(TIMING).resolve()), "log_every": 1}
        write_bytes(folder.file(TIMING, ".yaml"), dump_yaml(config).encode())
        words = runner.train_words(folder.file(TIMING, ".yaml"), run)
        outcome = yield from runner.run(TIMING, words, 0, _Enough(run))
        if outcome.status == "failed":
            log(f"the time cannot be told: {outcome.reason}")
        return _median_speed(run)
    finally:
        shutil.rmtree(run.path, ignore_errors=True)
        for path in (folder.table(TIMING), *(folder.file(TIMING, each) for each in (".yaml", ".log"))):
            path.unlink(missing_ok=True)
        lock.release()


class _Enough:
    """Whether a run has taken enough steps to be timed."""

    def __init__(self, run: RunFolder) -> None:
        self._run, self._started = run, time.monotonic()

    def __call__(self) -> bool:
        num_steps = len(read_log(self._run.log))
        return num_steps >= NUM_STEPS or (num_steps > 0 and time.monotonic() - self._started > SECONDS)


def _median_speed(run: RunFolder) -> float | None:
    log = read_log(run.log)
    speeds = log["images/s"].dropna() if "images/s" in log else log["loss"]
    return float(speeds.iloc[min(2, len(speeds) - 1) :].median()) if len(speeds) else None
