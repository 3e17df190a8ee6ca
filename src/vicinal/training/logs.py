"""Logs of a run: CSV files for reading, TensorBoard for watching; both continue cleanly after a kill."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
from torch.utils.tensorboard import SummaryWriter

from vicinal.files import write_bytes
from vicinal.training.run import RunFolder


def read_log(path: Path) -> pd.DataFrame:
    """The lines of a log; none if it has not been written."""
    return pd.read_csv(path) if path.exists() else pd.DataFrame({"step": [], "loss": []})


class CsvLog:
    """Appends lines to a CSV file.

    Args:
        path: the file.
        column: "step" or "epoch"; lines that are later in it than `last` will be made again and are removed.
        last: where the run continues from; None starts anew.
    """

    def __init__(self, path: Path, column: str, last: int | None) -> None:
        self.path = path
        self.columns: list[str] = []
        if path.exists() and last is not None:
            self._keep_until(column, last)
        else:
            path.unlink(missing_ok=True)

    def _keep_until(self, column: str, last: int) -> None:
        with self.path.open(newline="") as file:
            lines = list(csv.reader(file))
        self.columns = lines[0] if lines else []
        # A killed process may have left half a line at the end.
        whole = [line for line in lines[1:] if len(line) == len(self.columns)]
        kept = [line for line in whole if float(line[self.columns.index(column)]) <= last]
        write_bytes(self.path, _lines(self.columns, *kept).encode())

    def write(self, values: Mapping[str, float]) -> None:
        """Append one line; the first one sets the columns."""
        text = ""
        if not self.columns:
            self.columns = list(values)
            text = _lines(self.columns)
        with self.path.open("a", newline="") as file:
            file.write(text + _lines([_short(values[column]) for column in self.columns]))


def _short(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def _lines(*rows: list[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


class RunLog:
    """The two logs of a run, in CSV and TensorBoard.

    Args:
        run: the run's folder.
        step: steps that the run continues after; 0 starts anew.
        epoch: epochs that it has finished, with their evaluations.
    """

    def __init__(self, run: RunFolder, step: int, epoch: int) -> None:
        self._steps = CsvLog(run.log, "step", step or None)
        self._metrics = CsvLog(run.metrics, "epoch", epoch if step else None)
        self._board = SummaryWriter(str(run.tensorboard), purge_step=step + 1 if step else None)

    def step(self, step: int, epoch: float, values: Mapping[str, float]) -> None:
        """Log what happened in a training step."""
        self._write(self._steps, "train", step, epoch, values)

    def metrics(self, step: int, epoch: float, values: Mapping[str, float]) -> None:
        """Log an evaluation."""
        self._write(self._metrics, "val", step, epoch, values)

    def _write(self, log: CsvLog, group: str, step: int, epoch: float, values: Mapping[str, float]) -> None:
        log.write({"step": step, "epoch": epoch, **values})
        for name, value in values.items():
            self._board.add_scalar(f"{group}/{name}", value, step)

    def close(self) -> None:
        """Write out what is buffered."""
        self._board.close()
