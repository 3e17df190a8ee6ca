"""The tables of a question: each method on unseen classes, with intervals, and its difference to the reference."""

from __future__ import annotations

import numpy as np
import pandas as pd

from benchmarks.findings.runs import Runs
from benchmarks.pretrained import mean_evaluation
from vicinal import Embedder, Table, evaluate
from vicinal.evaluation import Evaluation, Resampling, compare_models
from vicinal.utils.run_folder import RunFolder

METRICS = ("recall@1", "mAP@R")


def print_tables(runs: Runs) -> None:
    """A table for each condition."""
    test = runs.start.table.subset("test")
    found = {
        (condition, method): [_evaluate(run, runs.start.table, "test") for run in runs.of(method, condition)]
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


def _evaluate(run: RunFolder, table: Table, split: str) -> Evaluation:
    """The scores of a run on the classes of a split; its vectors are kept."""
    vectors, images = run.path / f"{split}.npy", table.subset(split)
    if not vectors.exists():
        np.save(vectors, Embedder.from_pretrained(run.model).embed(images, progress=False))
    return evaluate(np.load(vectors), images)


def _train_recall(runs: Runs, method: str, condition: str) -> str:
    """Recall@1 among the training images, in percent."""
    if not runs.question.training_images:
        return ""
    scores = [_evaluate(run, runs.start.table, "train") for run in runs.of(method, condition)]
    return f"{100 * np.mean([each.metrics['recall@1'] for each in scores]):.1f}"


def _interval(row: pd.Series, value: str, low: str, high: str) -> str:
    return f"{100 * row[value]:.1f} [{100 * row[low]:.1f}, {100 * row[high]:.1f}]"


def _short(value: object) -> str:
    return f"{value:.2g}" if isinstance(value, float) else str(value)
