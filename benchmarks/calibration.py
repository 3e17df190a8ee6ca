"""Do thresholds hold for other classes? Calibrated on the validation classes of runs, applied to their test classes.

    python -m benchmarks.calibration RUN [RUN ...]

The runs are of tables with class-disjoint splits, such as those of recipes/omniglot.yaml and recipes/grocery.yaml. Runs
whose names differ by a last number, the seed, are one row: the mean, and the lowest and highest of them. The
false-accept rate is FPIR at rank 1. As a larger gallery gives more false accepts, it is also seen on 20 random
selections of as many test classes as there are for validation, and thresholds are also calibrated with the training
images in the gallery.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.table import print_machine
from vicinal import Embedder, Table
from vicinal.data.loading import load_run_table
from vicinal.evaluation import OpenSetScores, calibrate, open_set_auroc, open_set_scores
from vicinal.retrieval import Calibration
from vicinal.retrieval.calibration import SCORE_KINDS, ScoreKind
from vicinal.utils.arrays import Floats
from vicinal.utils.run_folder import RunFolder
from vicinal.workflows.calibrate import with_gallery
from vicinal.workflows.embedded_table import EmbeddedTable

RATES = (0.01, 0.05, 0.1)
SELECTIONS = 20
COLUMNS = ("held out", "bound", "seen", "seen, as many classes", "seen, larger gallery", "FNIR",
           "FNIR, larger gallery", "AUROC", "probability", "right")  # fmt: skip


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


def embedded_split(run: RunFolder, model: Embedder, split: str) -> EmbeddedTable:
    """The embeddings of one split of a run."""
    part = load_run_table(run.table).subset(split)
    return EmbeddedTable(model.embed(part, progress=False), part, model)


def measure(run: RunFolder) -> dict[tuple[ScoreKind, float], list[float]]:
    """Calibrate on the validation classes at every rate, and apply to the test classes: a value for each column."""
    model, rows = Embedder.from_pretrained(run.model), {}
    val, train, test = (embedded_split(run, model, split) for split in ("val", "train", "test"))
    larger = with_gallery(val, train)
    for kind in SCORE_KINDS:
        scores = open_set_scores(test.vectors, test.table, kind)
        for rate in RATES:
            found = calibrate(val.vectors, val.table, rate, score=kind)
            among_all = calibrate(larger.vectors, larger.table, rate, score=kind)
            as_many = selected_rate(test.vectors, test.table, found, kind, found.num_classes)
            rows[kind, rate] = [
                found.held_out_false_accept_rate,
                found.false_accept_rate_bound,
                found.accepts(scores.unknown).mean(),
                as_many,
                among_all.accepts(scores.unknown).mean(),
                missed(scores, found),
                missed(scores, among_all),
                open_set_auroc(scores),
                *reliability(scores, found),
            ]
    return rows


def missed(scores: OpenSetScores, calibration: Calibration) -> float:
    """The fraction of known queries whose best match is not right, or not accepted."""
    return float(1 - (scores.is_right & calibration.accepts(scores.known)).mean())


def percents(values: Sequence[float]) -> str:
    """The mean of the seeds, and the lowest and highest."""
    spread = f" ({100 * min(values):.1f} to {100 * max(values):.1f})" if max(values) > min(values) else ""
    return f"{100 * np.mean(values):.1f}{spread}"


def main() -> None:
    """Calibrate, apply, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of finished runs")
    arguments = parser.parse_args()
    print_machine()
    print(f"\n| runs | score | asked for | {' | '.join(COLUMNS)} |\n{'|---' * (len(COLUMNS) + 3)}|")
    groups: dict[str, list[Path]] = defaultdict(list)
    for path in arguments.runs:
        groups[re.sub(r"-\d+$", "", f"{path.parent.name} {path.name}")].append(path)
    for name, paths in groups.items():
        measured = [measure(RunFolder(path)) for path in paths]
        for kind, rate in measured[0]:
            cells = map(percents, zip(*(each[kind, rate] for each in measured), strict=True))
            print(f"| {name} ({len(paths)}) | {kind} | {100 * rate:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
