"""How loss and retrieval develop in training runs: Fig. 2 and 3 of the contextual paper.

- With run folders: 1 - mAP on the validation split against the training loss. A loss is a good surrogate of the
  ranking if the curves are lines that fall together to the lower left. Each starts at the dot and ends at the star.
- :func:`train_against_test`: recall@1 on test images against recall@1 on training images. Of two runs with the same
  recall on test images, the one with less on training images has overfitted less. A run folder has no recall on
  training images; a training loop of your own has to measure it.

Run `python examples/figures/contextual_progress.py RUN [RUN ...] --out loss.png`.
Reference: Liao et al., "Supervised Metric Learning to Rank for Retrieval via Contextual Similarity Optimization", ICML
2023.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from vicinal.report.drawing import COLORS, DPI, INK, tidy, write_figure
from vicinal.utils.errors import InputError
from vicinal.utils.run_folder import RunFolder, read_log


class Progress(NamedTuple):
    """Two numbers of a run, measured at each evaluation.

    Attributes:
        x: [evaluations], such as the loss.
        y: [evaluations], such as 1 - mAP.
    """

    x: Sequence[float]
    y: Sequence[float]


def loss_and_error(log: pd.DataFrame, metrics: pd.DataFrame, part: str = "loss") -> Progress:
    """The training loss and 1 - mAP at each evaluation of a run.

    The loss of an evaluation is the mean of what was logged since the one before. It is that of training batches, and
    the mAP is that of the validation split. Evaluations before the first logged step are left out.

    Args:
        log: columns `step` and the part.
        metrics: columns `step` and `mAP`, one row per evaluation.
        part: the column of the log: "loss", or the name of a loss in a sum, such as "ContextualLoss".

    Raises:
        InputError: a column is missing, or no evaluation has a logged step before it.
    """
    for name, frame, column in (("log", log, part), ("metrics", metrics, "mAP")):
        if column not in frame:
            raise InputError(f"{name} has no column {column!r}; its columns are {', '.join(frame.columns)}")
    losses, errors, last = [], [], -math.inf
    for step, precision in zip(metrics["step"], metrics["mAP"], strict=True):
        logged = log[part][(log["step"] > last) & (log["step"] <= step)]
        if len(logged):
            losses.append(float(logged.mean()))
            errors.append(1 - float(precision))
        last = step
    if not losses:
        raise InputError("no evaluation in metrics has a step of the log before it")
    return Progress(losses, errors)


def loss_against_error(runs: Mapping[str, Progress], path: str | Path) -> None:
    """Draw 1 - mAP against the loss, one curve per run."""
    draw_progress(runs, "loss", "1 - mAP", path)


def train_against_test(runs: Mapping[str, Progress], path: str | Path) -> None:
    """Draw recall@1 on test images against recall@1 on training images, both from 0 to 1, one curve per run."""
    percent = {name: Progress([100 * x for x in run.x], [100 * y for y in run.y]) for name, run in runs.items()}
    draw_progress(percent, "recall@1 of training images (%)", "recall@1 of test images (%)", path)


def draw_progress(runs: Mapping[str, Progress], x_name: str, y_name: str, path: str | Path) -> None:
    """Draw one curve per run."""
    figure = Figure(figsize=(5.2, 3.8), dpi=DPI, layout="constrained")
    axes = figure.subplots()
    tidy(axes, y_name)
    axes.set_xlabel(x_name, color=INK)
    for number, (name, (x, y)) in enumerate(runs.items()):
        color = COLORS[number % len(COLORS)]
        axes.plot(x, y, "--", color=color, linewidth=1.4, label=name.replace("$", r"\$"))
        axes.plot(x[0], y[0], "o", color=color, markersize=4)
        axes.plot(x[-1], y[-1], "*", color=color, markersize=11)
    axes.legend(frameon=False, fontsize=8, labelcolor=INK)
    write_figure(figure, Path(path))


def main(folders: Sequence[str], path: str, part: str = "loss") -> None:
    """Draw the runs in some folders."""
    runs = {folder: RunFolder(Path(folder)) for folder in folders}
    loss_against_error(
        {name: loss_and_error(read_log(run.log), read_log(run.metrics), part) for name, run in runs.items()}, path
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="folders of runs whose recipes evaluate")
    parser.add_argument("--part", default="loss", help="column of log.csv, such as the name of a loss in a sum")
    parser.add_argument("--out", default="loss_and_error.png", help="the picture (png, jpg, webp, pdf, svg)")
    given = parser.parse_args()
    main(given.runs, given.out, given.part)
