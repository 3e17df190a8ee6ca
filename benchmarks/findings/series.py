"""How much does recall@1 flatter where images are photos of one shelf, or of one encounter with an animal?

    python -m benchmarks.findings.series --root DATA --out RUNS
    python -m benchmarks.findings.series --dataset nyala --root DATA --out RUNS

DATA holds grocery.zip or nyala.zip, RUNS the runs of `python -m benchmarks.findings losses --dataset grocery_imagenet`
or `python -m benchmarks.findings nyala`. Across series, images of the query's class and series are neither right nor
wrong; counted all, they are matches like others. A series of nyala is a sighting: one photo of each side of an animal.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.findings.question import Question
from benchmarks.findings.runs import Runs
from benchmarks.findings.tables import NOT_TRAINED, vectors_before, vectors_of
from benchmarks.pretrained import mean_evaluation
from benchmarks.table import percent_with_interval, print_machine
from vicinal import Table, evaluate
from vicinal.data import read_image
from vicinal.evaluation import Evaluation, Resampling, compare_models
from vicinal.utils.arrays import Floats

SERIES = {"grocery_imagenet": ("losses", "group"), "nyala": ("nyala", "sighting")}
"""Dataset -> the question whose runs are evaluated, and the column of the series."""

BINS = (12, 4, 4)  # of hue, saturation and value


def color_histograms(table: Table) -> Floats:
    """Square roots of the histograms of the images' colors, without a network."""
    rows = []
    for path in table.paths:
        image = read_image(path).convert("HSV")
        pixels = np.asarray(image, dtype=np.float64).reshape(-1, 3)
        rows.append(np.sqrt(np.histogramdd(pixels, BINS, [(0, 256)] * 3)[0].ravel() / len(pixels)))
    return np.stack(rows).astype(np.float32)


def vectors_of_seeds(runs: Runs, images: Table) -> Iterator[tuple[str, list[Floats]]]:
    """The vectors of each method, of each of its seeds."""
    yield "color histograms", [color_histograms(images)]
    yield NOT_TRAINED, [vectors_before(runs, images)]
    for method in runs.question.methods:
        if done := runs.of(method, ""):
            yield method, [vectors_of(run, images, runs.question.split) for run in done]


def main() -> None:
    """Embed, evaluate both ways, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", choices=SERIES, default="grocery_imagenet")
    parser.add_argument("--root", required=True, help="folder that holds grocery.zip or nyala.zip")
    parser.add_argument("--out", required=True, type=Path, help="folder of the runs")
    arguments = parser.parse_args()
    question, column = SERIES[arguments.dataset]
    runs = Runs(Question.read(question, arguments.dataset), arguments.root, arguments.out)
    images = runs.start.table.subset(runs.question.split)
    frame = images.frame.drop(columns=column)
    tables = {"all images": Table(frame), "across series": Table(frame.assign(group=images.frame[column]))}
    found: dict[str, dict[str, Evaluation]] = {name: {} for name in tables}
    for method, vectors in vectors_of_seeds(runs, images):
        for name, table in tables.items():
            found[name][method] = mean_evaluation([evaluate(each, table) for each in vectors])
    print_machine()
    results = {name: compare_models(found[name], table, Resampling()) for name, table in tables.items()}
    columns = [f"{metric}, {name}" for metric in ("recall@1", "mAP@R") for name in tables]
    print(f"\n| {len(images):,} photos of {len(images.classes)} classes | {' | '.join(columns)} |\n{'|---' * 5}|")
    for method in found["all images"]:
        rows = [results[name].overall(method).loc[metric] for metric in ("recall@1", "mAP@R") for name in tables]
        cells = [percent_with_interval(row) for row in rows]
        print(f"| {method} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
