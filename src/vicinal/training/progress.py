"""The progress of a run: its position, its length, and its logs in files, TensorBoard and the terminal."""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from vicinal.utils.console import duration, log, progress_bar
from vicinal.utils.errors import InputError
from vicinal.utils.files import write_bytes
from vicinal.utils.run_folder import RunFolder

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

DEFAULT_EPOCHS, MIN_STEPS = 4, 30
"""The default length of a run: this number of epochs, or as many as take this number of steps."""
FIRST_STEPS = 20  # of a process, after which the duration of the run is logged
MIN_SECONDS = 30  # of a run whose time is worth a line


@dataclass
class Progress:
    """Steps, epochs and the best validation score of a run."""

    step: int = 0
    epoch: int = 0  # finished epochs
    steps_in_epoch: int = 0  # in the current epoch
    zero_shot: float = -math.inf  # score of the pretrained network's own embeddings; -inf without pretrained weights
    best: float = -math.inf  # -inf before the first evaluation
    best_epoch: int = 0  # finished epochs at the best score
    evaluations_since_best: int = 0
    score: float = math.nan  # of the last evaluation; NaN before the first
    loss_sum: float = 0.0  # of the steps of the current epoch
    loss: float = math.nan  # mean of the steps of the last finished epoch; NaN before
    seconds: float = 0.0  # that the run has taken, also before it was resumed

    @property
    def keeps_zero_shot(self) -> bool:
        """Whether no score is better than that of the pretrained network; an equal score, as with one class, is not."""
        return self.zero_shot >= self.best > -math.inf

    def count_step(self) -> None:
        self.step += 1
        self.steps_in_epoch += 1

    def count_epoch(self) -> None:
        self.epoch += 1
        self.loss = self.loss_sum / max(1, self.steps_in_epoch)
        self.steps_in_epoch, self.loss_sum = 0, 0.0

    def count_evaluation(self, score: float) -> bool:
        """Count an evaluation, and return whether its score is the best so far."""
        self.evaluations_since_best += 1
        self.score = score
        if not score > self.best:
            return False
        self.best, self.best_epoch, self.evaluations_since_best = score, self.epoch, 0
        return True


def fit_epochs(steps_per_epoch: int, num_classes: int | None) -> int:
    """The number of epochs of a run that limits neither epochs nor steps; few images take more than others.

    A pretrained network overfits to few classes (docs/findings/defaults.md). With fewer than 30, a run of few images
    has one step for each class, and any run ends with the epoch that reaches two.

    Args:
        steps_per_epoch: number of steps of an epoch.
        num_classes: number of classes that are trained on; None: it has no influence.
    """
    steps = max(DEFAULT_EPOCHS * steps_per_epoch, MIN_STEPS)
    if num_classes is not None and num_classes < MIN_STEPS:
        steps = min(max(DEFAULT_EPOCHS * steps_per_epoch, num_classes), 2 * num_classes)
    return math.ceil(steps / steps_per_epoch)


@dataclass(frozen=True)
class RunLength:
    """The end of a run, by epochs, by steps, or by whichever comes first; at least one is given.

    The run ends after `stop_epoch` epochs, although its schedule is that of the full `epochs` and `max_steps`.
    """

    epochs: int | None
    max_steps: int | None
    stop_epoch: int | None = None

    @property
    def last_epoch(self) -> int | None:
        """The number of epochs after which the run ends, unless steps end it before; None: no limit."""
        return min((each for each in (self.epochs, self.stop_epoch) if each is not None), default=None)

    def is_reached(self, progress: Progress) -> bool:
        """Whether the run is over; never within an epoch, which must be finished first, even if it was cut short."""
        epochs = math.inf if self.last_epoch is None else self.last_epoch
        steps = math.inf if self.max_steps is None else self.max_steps
        return progress.steps_in_epoch == 0 and (progress.epoch >= epochs or progress.step >= steps)

    def steps_of_epoch(self, progress: Progress, steps: int) -> int:
        """The number of steps taken in the current epoch of `steps` steps: fewer if the run ends in it."""
        return steps if self.max_steps is None else min(steps, self.max_steps - _steps_before(progress))

    def num_steps(self, progress: Progress, steps: int) -> int:
        """The number of steps of the whole run if this epoch and all after it have `steps` steps."""
        left = math.inf if self.epochs is None else (self.epochs - progress.epoch) * steps
        end = _steps_before(progress) + left
        return int(end if self.max_steps is None else min(end, self.max_steps))

    def fraction(self, progress: Progress) -> float:
        """The finished fraction of the run, by whole epochs or by steps."""
        of_epochs = 0.0 if self.last_epoch is None else progress.epoch / self.last_epoch
        return of_epochs if self.max_steps is None else max(of_epochs, progress.step / self.max_steps)

    def position(self, progress: Progress) -> str:
        epoch = f"epoch {progress.epoch}" if self.last_epoch is None else f"epoch {progress.epoch}/{self.last_epoch}"
        return epoch if self.max_steps is None else f"{epoch}, step {progress.step}/{self.max_steps}"


def _steps_before(progress: Progress) -> int:
    return progress.step - progress.steps_in_epoch


class CsvLog:
    """A CSV file to which rows are appended.

    Rows with a `column`, step or epoch, above `last` are removed, as the resumed run writes them again.
    """

    def __init__(self, path: Path, column: str, last: int | None) -> None:
        self.path = path
        self.columns: list[str] = []
        if path.exists() and last is not None:
            self._keep_until(column, last)
        else:
            path.unlink(missing_ok=True)

    def _keep_until(self, column: str, last: int) -> None:
        header, *rows = _read_complete(self.path) or [[]]
        if header and column not in header:
            raise InputError(f"{self.path}: not a log of a run (it has no column {column}); move it away to resume")
        self.columns = header
        kept = [row for row in rows if len(row) == len(header) and _number(row[header.index(column)]) <= last]
        write_bytes(self.path, _lines(header, *kept).encode() if header else b"")

    def write(self, values: Mapping[str, float]) -> None:
        """Append one row; the first one defines the columns."""
        text = ""
        if not self.columns:
            self.columns = list(values)
            text = _lines(self.columns)
        with self.path.open("a", newline="") as file:
            row = [values[column] for column in self.columns]
            file.write(text + _lines([str(each) if isinstance(each, int) else f"{each:.6g}" for each in row]))


def _read_complete(path: Path) -> list[list[str]]:
    """The lines of a CSV file, without a last one that a killed process left without a line break."""
    text = path.read_bytes().decode("utf-8", errors="replace").replace("\0", "")
    return list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1])))


def _number(text: str) -> float:
    """The number in a field; infinity if it is damaged, which is above all steps."""
    try:
        return float(text)
    except ValueError:
        return math.inf


def _lines(*rows: list[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


class Throughput:
    """The number of images per second."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.count, self.since = 0, time.monotonic()

    def add(self, count: int) -> None:
        self.count += count

    def per_second(self) -> float:
        return self.count / (time.monotonic() - self.since)


class RunLog:
    """The two logs of a run, in CSV and, where it is installed, in TensorBoard; both go on after these steps."""

    def __init__(self, run: RunFolder, step: int, epoch: int) -> None:
        self._steps = CsvLog(run.log, "step", step or None)
        self._metrics = CsvLog(run.metrics, "epoch", epoch if step else None)
        self._board = _tensorboard(run.tensorboard, step)

    def step(self, step: int, epoch: float, values: Mapping[str, float]) -> None:
        self._write(self._steps, "train", step, epoch, values)

    def metrics(self, step: int, epoch: float, values: Mapping[str, float]) -> None:
        """Log an evaluation; the names of metrics on training images begin with `train `."""
        self._write(self._metrics, "val", step, epoch, values)

    def _write(self, log: CsvLog, group: str, step: int, epoch: float, values: Mapping[str, float]) -> None:
        log.write({"step": step, "epoch": epoch, **values})
        for name, value in values.items():
            tag = name.replace(" ", "/", 1) if name.startswith("train ") else f"{group}/{name}"
            if self._board is not None:
                self._board.add_scalar(tag, value, step)

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


def _tensorboard(folder: Path, step: int) -> SummaryWriter | None:
    """A writer that continues after a step, or begins at 0; None without the package tensorboard, an extra."""
    if find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=step + 1 if step else None)


class ProgressDisplay:
    """Shows on stderr how far a run is; this process starts with `progress`."""

    def __init__(self, length: RunLength, metric: str, progress: Progress) -> None:
        self.length, self.metric = length, metric
        self.started_at, self.started_fraction = time.monotonic(), length.fraction(progress)
        self._num_steps, self._first_step_at, self._is_told = 0, math.nan, False

    @contextmanager
    def bar(self) -> Iterator[None]:
        with progress_bar() as self._bar:
            self._task = self._bar.add_task("training", total=None, note="")
            yield

    def step(self, progress: Progress, loss: float, num_steps: int) -> None:
        """Show that a step of a run of `num_steps` steps has been taken, with its loss."""
        self._bar.update(self._task, completed=progress.step, total=num_steps, note=self._summary(progress, loss))
        self._num_steps += 1
        if self._num_steps == 1:  # the first step takes longer
            self._first_step_at = time.monotonic()
        elif self._num_steps == FIRST_STEPS and not self._is_told:
            self._log_time_left(num_steps - progress.step)

    def epoch(self, progress: Progress) -> None:
        log(f"{self._summary(progress, progress.loss)}, {self._time_left(progress)}")
        self._is_told = True

    def start(self, progress: Progress, num_steps: int) -> None:
        """Start an epoch; say at the start of a run if its epochs, maybe a default, end it before `max_steps`."""
        if self._num_steps == 0:  # the time excludes a first validation and the computation of frozen features
            self.started_at = time.monotonic()
        epochs, max_steps = self.length.epochs, self.length.max_steps
        if progress.step == 0 and max_steps is not None and num_steps < max_steps:
            end = f"epochs = {epochs} ends the run at step {num_steps}, before max_steps = {max_steps}"
            log(f"{end}; epochs: null removes this limit")

    def _log_time_left(self, steps: int) -> None:
        """Log the duration of the remaining steps, before the first epoch is over."""
        seconds = steps * (time.monotonic() - self._first_step_at) / (FIRST_STEPS - 1)
        if seconds >= MIN_SECONDS:
            log(f"about {duration(seconds)} for {steps:,} more steps, and more for validation; it may end early")

    def _summary(self, progress: Progress, loss: float) -> str:
        text = f"{self.length.position(progress)}: loss {loss:.4f}"
        if math.isnan(progress.score) or not math.isfinite(max(progress.score, progress.best)):  # with keep = last
            return text
        score = f"{progress.score:.4f}" if math.isfinite(progress.score) else "below the guardrails"
        return f"{text}, {self.metric} {score} (best {progress.best:.4f} in epoch {progress.best_epoch})"

    def _time_left(self, progress: Progress) -> str:
        """The time that the rest of the run takes if it goes on as in this process so far."""
        done = self.length.fraction(progress)
        speed = max(done - self.started_fraction, 1e-9) / (time.monotonic() - self.started_at)
        return f"{duration((1 - done) / speed)} left"
