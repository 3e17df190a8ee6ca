"""The logs of a run and the cost of its training, and the columns of its metrics that have a meaning of their own."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from vicinal.utils.errors import InputError
from vicinal.utils.files import check_regular_file, write_bytes

TRAIN_RECALL = "train recall@1"
LOWEST_GAIN = "lowest gain in standard errors"  # of a refiner's guardrail metrics at any number of images per class
MAX_LOSS = 0.5  # of such a metric, in standard errors, in an epoch that may be kept
UPDATE_FACTOR = "update factor"  # of a refiner; not a metric


def empty_log() -> pd.DataFrame:
    """A log without rows."""
    return pd.DataFrame({"step": [], "loss": []}, dtype=float)


def read_log(path: Path) -> pd.DataFrame:
    """Read the `log.csv` or `metrics.csv` of a run.

    Args:
        path: the file; if it is missing or empty, the log has no rows.

    Returns:
        One row per line, all columns numeric. In a line that a killed process left unfinished, missing values are NaN.

    Raises:
        InputError: the file is no such log.
    """
    if not path.is_file() or not path.stat().st_size:
        return empty_log()
    try:
        frame = pd.read_csv(path, on_bad_lines="skip")
    except (ValueError, UnicodeError) as error:
        raise InputError(f"{path}: not a log of a run ({str(error).splitlines()[0]})") from None
    if "step" not in frame:
        raise InputError(f"{path}: not a log of a run (it has no column 'step')")
    return frame.apply(pd.to_numeric, errors="coerce")


@dataclass(frozen=True)
class TrainingCost:
    """What the training of a run took.

    Attributes:
        seconds: from the first image to the finished model with all evaluations, as a clock on the wall measures it,
            summed up over the interruptions of a run; steps that a killed process had taken after its last checkpoint
            count once. None: unknown.
        trained_parameters: the number of parameters of the model that were trained; those of the loss are left out.
        memory_format: the order in memory of images and convolutions, which decides the last bits of the results:
            channels_last or contiguous_format. None: unknown.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     TrainingCost(81.5, 131_072).save(Path(folder, "training.json"))
        ...     TrainingCost.load(Path(folder, "training.json"))
        TrainingCost(seconds=81.5, trained_parameters=131072, memory_format=None)
    """

    seconds: float | None
    trained_parameters: int
    memory_format: str | None = None

    def save(self, path: Path) -> None:
        """Write the file of a run, as a whole."""
        write_bytes(path, (json.dumps(asdict(self)) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> TrainingCost | None:
        """Read the file of a run; None if it has none.

        Raises:
            InputError: the file is damaged.
        """
        if not path.exists():
            return None
        check_regular_file(path)
        try:
            values = json.loads(path.read_bytes())
            seconds, number, layout = values["seconds"], values["trained_parameters"], values["memory_format"]
            if type(number) is not int or number < 0:
                raise ValueError("trained_parameters")
            if seconds is not None and not (type(seconds) in (int, float) and 0 <= seconds < math.inf):
                raise ValueError("seconds")
            if layout not in (None, "channels_last", "contiguous_format"):
                raise ValueError("memory_format")
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise InputError(
                f"{path}: damaged; a run's file has the numbers seconds and trained_parameters, and "
                "memory_format. Delete it if the time of the training does not matter"
            ) from None
        return cls(seconds, number, layout)
