"""Do thresholds hold for other classes? Calibrated on the validation classes of runs, applied to their test classes.

    python -m benchmarks.calibration RUN [RUN ...]

The runs are of tables with class-disjoint splits, such as those of recipes/omniglot.yaml and recipes/grocery.yaml. The
false-accept rate is FPIR at rank 1. It is seen on all test classes, with the interval from resampled classes, and, as
a larger gallery gives more false accepts, on 20 random selections of as many test classes as there are for validation.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks.table import print_machine
from vicinal import Embedder, Table
from vicinal.data.loading import load_run_table
from vicinal.evaluation import OpenSetScores, Resampling, calibrate, open_set_auroc, open_set_scores
from vicinal.evaluation.calibration import rate_interval
from vicinal.retrieval import Calibration
from vicinal.retrieval.calibration import SCORE_KINDS, ScoreKind
from vicinal.utils.arrays import Floats
from vicinal.utils.run_folder import RunFolder

RATES = (0.01, 0.05, 0.1)
SELECTIONS = 20
COLUMNS = ("run", "score", "asked for", "held out, validation", "seen, test", "as many classes",
           "FNIR, validation", "FNIR, test", "AUROC, test", "probability, test", "right, test")  # fmt: skip


def selected_rate(vectors: Floats, table: Table, calibration: Calibration, kind: ScoreKind, num_classes: int) -> float:
    """The mean false-accept rate over random selections of so many classes."""
    rng, rates = np.random.default_rng(0), []
    for _ in range(SELECTIONS):
        rows = np.flatnonzero(np.isin(table.labels, rng.permutation(len(table.classes))[:num_classes]))
        rates.append(calibration.accepts(open_set_scores(vectors[rows], table.take(rows), kind).unknown).mean())
    return float(np.mean(rates))


def reliability(scores: OpenSetScores, calibration: Calibration) -> tuple[float, float]:
    """The mean probability of the best matches, and the fraction that is right, with as many known as unknown ones."""
    known, unknown = calibration.probability(scores.known).mean(), calibration.probability(scores.unknown).mean()
    return float(known + unknown) / 2, float(scores.is_right.mean()) / 2


def percent(value: float, interval: tuple[float, float] | None = None) -> str:
    """A rate, and its interval if there is one."""
    bounds = "" if interval is None else f" [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]"
    return f"{100 * value:.1f}{bounds}"


def print_rows(run: RunFolder) -> None:
    """Calibrate on the validation classes at every rate, apply to the test classes, print."""
    table, model = load_run_table(run.table), Embedder.from_pretrained(run.model)
    parts = {split: table.subset(split) for split in ("val", "test")}
    vectors = {split: model.embed(part, progress=False) for split, part in parts.items()}
    for kind in SCORE_KINDS:
        scores = open_set_scores(vectors["test"], parts["test"], kind)
        for rate in RATES:
            calibration = calibrate(vectors["val"], parts["val"], rate, score=kind)
            accepted = calibration.accepts(scores.unknown)
            missed = ~(scores.is_right & calibration.accepts(scores.known))
            probability, right = reliability(scores, calibration)
            cells = [
                run.path.name, kind, percent(rate),
                percent(calibration.held_out_false_accept_rate, calibration.held_out_false_accept_rate_interval),
                percent(accepted.mean(), rate_interval(accepted, scores.unknown_classes, Resampling())),
                percent(selected_rate(vectors["test"], parts["test"], calibration, kind, calibration.num_classes)),
                percent(calibration.false_reject_rate), percent(missed.mean()), percent(open_set_auroc(scores)),
                percent(probability), percent(right),
            ]  # fmt: skip
            print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Calibrate, apply, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of finished runs")
    arguments = parser.parse_args()
    print_machine()
    print(f"\n| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|")
    for path in arguments.runs:
        print_rows(RunFolder(path))


if __name__ == "__main__":
    main()
