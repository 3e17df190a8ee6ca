"""Identification of individuals of whom half are unknown: which pooling, and how well are the new ones grouped?

    python -m benchmarks.individuals NAME=VALIDATION,TEST [NAME=VALIDATION,TEST ...] --out FOLDER

VALIDATION and TEST are files of embeddings of disjoint classes, such as those of `vicinal embed RUN --split val --out
val.parquet`. Thresholds are calibrated on the validation classes, for 10 % of false accepts. Half of the test classes
are enrolled, with half of their photos or at most two, in ten random divisions. A row is the mean over these; its
interval is the mean of theirs, over classes. What was measured is kept in FOLDER, and is not measured again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.table import markdown_table, print_machine
from vicinal import Table
from vicinal.data import load_embeddings
from vicinal.evaluation import Resampling, calibrate, enrolled_rows, evaluate_identification
from vicinal.evaluation.calibration import rate_interval
from vicinal.retrieval.calibration import POOLINGS, Pooling
from vicinal.utils.arrays import Floats
from vicinal.utils.files import write_bytes

DIVISIONS = 10
RATE = 0.1
RESAMPLING = Resampling(num_resamples=500)
COLUMNS = ("closed_set_accuracy", "identification_rate", "known_as_new", "unknown_rate", "new_ARI", "new_F1")
Value = tuple[float, float, float]


def divided(table: Table, photos: int | None, seed: int) -> Table:
    """Half of the classes with half of their photos, or at most `photos`, are the gallery; the others are queries."""
    rows = enrolled_rows(table, seed=seed)
    if photos is not None:
        rows = rows[pd.Series(table.labels[rows]).groupby(table.labels[rows]).cumcount().to_numpy() < photos]
    is_gallery = np.zeros(len(table), dtype=bool)
    is_gallery[rows] = True
    columns = [name for name in ("label", "group") if table.has(name)]
    return Table(table.frame[columns].assign(is_gallery=is_gallery, is_query=~is_gallery))


def measure(val: tuple[Floats, Table], test: tuple[Floats, Table], pooling: Pooling, photos: int | None) -> list[Value]:
    """Each metric: the mean over the divisions, and of the ends of its intervals."""
    calibration = calibrate(*val, RATE, pooling=pooling, resampling=RESAMPLING)
    found: list[list[Value]] = []
    for seed in range(DIVISIONS):
        table = divided(test[1], photos, seed)
        result = evaluate_identification(test[0], table, calibration)
        values = []
        for name in COLUMNS:
            if name in result.set_metrics:
                values.append((result.set_metrics[name], *result.set_intervals[name]))
                continue
            scores = result.per_query[name]
            is_counted = ~np.isnan(scores)
            outcomes = scores[is_counted] > 0
            values.append((outcomes.mean(), *rate_interval(outcomes, table.labels[is_counted], RESAMPLING)))
        found.append(values)
    means = np.mean(found, axis=0).tolist()
    return [(value, low, high) for value, low, high in means]


def main() -> None:
    """Measure what was not measured yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", help="NAME=VALIDATION,TEST")
    parser.add_argument("--out", type=Path, required=True, help="the folder of what was measured")
    arguments = parser.parse_args()
    print_machine()
    rows = []
    for each in arguments.sets:
        name, _, files = each.partition("=")
        val, test = (load_embeddings(file) for file in files.split(","))
        for photos in (None, 2):
            for pooling in POOLINGS:
                kept = arguments.out / f"{name}-{photos or 'half'}-{pooling}.json"
                if not kept.exists():
                    arguments.out.mkdir(parents=True, exist_ok=True)
                    write_bytes(kept, json.dumps(measure(val, test, pooling, photos)).encode())
                cells = [f"{100 * value:.1f} [{100 * low:.1f}, {100 * high:.1f}]"
                         for value, low, high in json.loads(kept.read_text())]  # fmt: skip
                enrolled = "half" if photos is None else f"at most {photos}"
                rows.append([name, enrolled, pooling, *cells])
    print("\n" + markdown_table(["set", "photos enrolled", "pooling", *COLUMNS], rows))


if __name__ == "__main__":
    main()
