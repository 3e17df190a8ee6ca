"""The tables of a question: each method on unseen classes, with intervals, and its difference to the reference."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.findings.runs import Runs
from benchmarks.pretrained import mean_evaluation
from vicinal import Embedder, Table, evaluate
from vicinal.evaluation import Evaluation, Resampling, compare_models

METRICS = ("recall@1", "mAP@R")


def print_tables(runs: Runs) -> None:
    """A table for each condition."""
    test = runs.start.table.subset("test")
    found = {
        (condition, method): [_evaluate(run.path, run.model, test) for run in runs.of(method, condition)]
        for condition in runs.question.conditions
        for method in runs.question.methods
    }
    for condition in runs.question.conditions:
        _print_condition(runs, test, condition, {method: found[condition, method] for method in runs.question.methods})
    if len(runs.question.conditions) > 1:
        _print_overview(runs, found)


def _print_condition(runs: Runs, test: Table, condition: str, found: dict[str, list[Evaluation]]) -> None:
    done = {method: each for method, each in found.items() if each}
    if not done:
        return
    reference = runs.question.reference if runs.question.reference in done else next(iter(done))
    order = [reference, *(method for method in done if method != reference)]
    results = compare_models({method: mean_evaluation(done[method]) for method in order}, test, Resampling())
    print(f"\n{runs.question.name}{f', {condition}' if condition else ''}\n")
    print(f"| | recall@1 | mAP@R | mAP@R over {reference} | p | deviation over seeds | train recall@1 | tuned |")
    print("|---" * 8 + "|")
    for method in done:
        rows = results.overall(method)
        cells = [_interval(rows.loc[metric], "value", "low", "high") for metric in METRICS]
        row, is_reference = rows.loc["mAP@R"], method == reference
        ends = ("difference", "difference_low", "difference_high")
        cells += ["", ""] if is_reference else [_interval(row, *ends), f"{row['p_value']:.3f}"]
        values = [100 * each.metrics["mAP@R"] for each in done[method]]
        cells.append(f"± {np.std(values, ddof=1):.1f}" if len(values) > 1 else "one seed")
        cells.append(_train_recall(runs, method, condition))
        cells.append(
            ", ".join(f"{key.removeprefix('loss.')} {_short(value)}" for key, value in runs.tuned(method).items())
        )
        print(f"| {method} | {' | '.join(cells)} |", flush=True)


def _print_overview(runs: Runs, found: dict[tuple[str, str], list[Evaluation]]) -> None:
    for metric in METRICS:
        print(f"\n{runs.question.name}: {metric}, mean ± deviation over seeds\n")
        print(f"| | {' | '.join(runs.question.conditions)} |\n{'|---' * (len(runs.question.conditions) + 1)}|")
        for method in runs.question.methods:
            cells = [_mean(found[condition, method], metric) for condition in runs.question.conditions]
            print(f"| {method} | {' | '.join(cells)} |")


def _mean(found: list[Evaluation], metric: str) -> str:
    values = [100 * each.metrics[metric] for each in found]
    spread = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    return f"{np.mean(values):.1f}{spread}" if values else ""


def _evaluate(run: Path, model: Path, test: Table) -> Evaluation:
    """The scores of a run on the test classes; its vectors are kept."""
    vectors = run / "test.npy"
    if not vectors.exists():
        np.save(vectors, Embedder.from_pretrained(model).embed(test, progress=False))
    return evaluate(np.load(vectors), test)


def _train_recall(runs: Runs, method: str, condition: str) -> str:
    """Recall@1 among training images, of the runs that log it."""
    values = []
    for run in runs.of(method, condition):
        metrics = json.loads((run.model / "config.json").read_text())["metrics"]
        values += [100 * value for name, value in metrics.items() if name == "train recall@1"]
    return f"{np.mean(values):.1f}" if values else ""


def _interval(row: pd.Series, value: str, low: str, high: str) -> str:
    return f"{100 * row[value]:.1f} [{100 * row[low]:.1f}, {100 * row[high]:.1f}]"


def _short(value: object) -> str:
    return f"{value:.2g}" if isinstance(value, float) else str(value)
