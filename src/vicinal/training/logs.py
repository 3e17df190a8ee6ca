"""The logs of a run, in CSV files and for TensorBoard; both are continued without duplicates when a run is resumed."""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Mapping
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from vicinal.utils.errors import InputError
from vicinal.utils.files import write_bytes
from vicinal.utils.run_folder import RunFolder


class CsvLog:
    """A CSV file to which rows are appended.

    Args:
        path: the file.
        column: "step" or "epoch"; rows with a value above `last` are removed, as the resumed run writes them again.
        last: the step or epoch from which the run is resumed; None starts a new file.
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
            file.write(text + _lines([_short(values[column]) for column in self.columns]))


def _read_complete(path: Path) -> list[list[str]]:
    """The lines of a CSV file but for the end that a killed process may have left without its line break."""
    text = path.read_bytes().decode("utf-8", errors="replace").replace("\0", "")
    return list(csv.reader(io.StringIO(text[: text.rfind("\n") + 1])))


def _number(text: str) -> float:
    """The number in a field; infinity if it is damaged, which is above all steps."""
    try:
        return float(text)
    except ValueError:
        return math.inf


def _short(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def _lines(*rows: list[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


class Throughput:
    """The number of images per second."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Start a new count."""
        self.count, self.since = 0, time.monotonic()

    def add(self, count: int) -> None:
        """Count more images."""
        self.count += count

    def per_second(self) -> float:
        """Images per second since the last restart."""
        return self.count / (time.monotonic() - self.since)


class RunLog:
    """The two logs of a run, in CSV and TensorBoard.

    Args:
        run: the run's folder.
        step: number of steps after which the run is resumed; 0 for a new run.
        epoch: number of finished epochs.
    """

    def __init__(self, run: RunFolder, step: int, epoch: int) -> None:
        self._steps = CsvLog(run.log, "step", step or None)
        self._metrics = CsvLog(run.metrics, "epoch", epoch if step else None)
        self._board = SummaryWriter(str(run.tensorboard), purge_step=step + 1 if step else None)

    def step(self, step: int, epoch: float, values: Mapping[str, float]) -> None:
        """Log the values of a training step."""
        self._write(self._steps, "train", step, epoch, values)

    def metrics(self, step: int, epoch: float, values: Mapping[str, float]) -> None:
        """Log an evaluation; the names of metrics on training images begin with `train `."""
        self._write(self._metrics, "val", step, epoch, values)

    def _write(self, log: CsvLog, group: str, step: int, epoch: float, values: Mapping[str, float]) -> None:
        log.write({"step": step, "epoch": epoch, **values})
        for name, value in values.items():
            tag = name.replace(" ", "/", 1) if name.startswith("train ") else f"{group}/{name}"
            self._board.add_scalar(tag, value, step)

    def close(self) -> None:
        """Write buffered values."""
        self._board.close()
