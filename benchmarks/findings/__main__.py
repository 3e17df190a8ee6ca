"""Answers to questions about the papers' claims, by fine-tuning; a page each in docs/findings.

    python -m benchmarks.findings losses --root DATA --out RUNS             # goes on where it stopped
    python -m benchmarks.findings losses label_noise --root DATA --out RUNS --tables   # prints the finished runs

    python -m benchmarks.findings losses --dataset emoji --root DATA --out RUNS        # from ImageNet weights
    python -m benchmarks.findings losses --root DATA --out RUNS --tables --reference CCL    # differences to CCL

DATA holds the files of the dataset: Omniglot's zips, grocery.zip, emoji.zip or nyala.zip. Runs on emoji,
grocery_imagenet and nyala start from EfficientNet-Lite0 with weights of ImageNet, others from the network that
benchmarks.pretrained trains. Each method is tuned by `vicinal tune` on the validation classes, with the same number of
trials; the best settings are trained with three seeds and evaluated on the test classes.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.findings.question import QUESTIONS, REGIMES, Question
from benchmarks.findings.runs import Runs
from benchmarks.findings.tables import print_tables
from benchmarks.table import print_machine


def main() -> None:
    """Tune, train, print."""
    names = sorted(path.stem for path in QUESTIONS.glob("*.yaml"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", nargs="+", choices=names)
    datasets = sorted(path.stem for path in REGIMES.glob("*.yaml"))
    parser.add_argument("--dataset", choices=datasets, help="another one than that of the question's file")
    parser.add_argument("--root", required=True, help="folder of the files of the dataset")
    parser.add_argument("--out", required=True, type=Path, help="folder of the runs")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each (default: 1)")
    parser.add_argument("--tables", action="store_true", help="train nothing, print the finished runs")
    parser.add_argument("--reference", help="compare all methods to this one, which all questions given have")
    arguments = parser.parse_args()
    questions = [Question.read(name, arguments.dataset) for name in arguments.questions]
    if arguments.reference is not None:
        questions = [each.compared_to(arguments.reference) for each in questions]
    all_runs = [Runs(each, arguments.root, arguments.out) for each in questions]
    for runs in all_runs:
        if not arguments.tables:
            runs.make(arguments.jobs)
        if arguments.reference is not None and not runs.has(arguments.reference):
            parser.error(f"{runs.question.folder}: {arguments.reference} has no finished runs; run it without --tables")
    print_machine()
    for runs in all_runs:
        print_tables(runs)


if __name__ == "__main__":
    main()
