"""Reading the logs of a run, and the columns of its metrics that have a meaning of their own."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from vicinal.utils.errors import InputError

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
