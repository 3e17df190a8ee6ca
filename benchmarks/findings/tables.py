"""The tables of a question: each method on unseen classes, with intervals, and its difference to the reference."""

from __future__ import annotations

import numpy as np

from benchmarks.findings.runs import Runs
from benchmarks.pretrained import mean_evaluation
from benchmarks.table import mean_and_deviation, percent_with_interval
from vicinal import Embedder, Table, evaluate
from vicinal.evaluation import Evaluation, Resampling, ResultsTable, compare_models
from vicinal.utils.arrays import Floats
from vicinal.utils.run_folder import RunFolder

METRICS = ("recall@1", "mAP@R")
NOT_TRAINED = "not fine-tuned"
Found = dict[str, list[Evaluation]]  # method -> the scores of its seeds


def print_tables(runs: Runs) -> None:
    """A table for each condition, and of several conditions one that has them all."""
    found = {condition: evaluations(runs, condition, runs.question.split) for condition in runs.question.conditions}
    for condition, methods in found.items():
        _print_condition(runs, condition, methods)
    if len(found) > 1:
        _print_overview(runs, found)


def evaluations(runs: Runs, condition: str, split: str) -> Found:
    """The scores of the finished runs of each method on the classes of a split."""
    found = {method: runs.of(method, condition) for method in runs.question.methods}
    images = runs.start.table.subset(split)
    return {
        method: [evaluate(vectors_of(run, images, split), images) for run in done]
        for method, done in found.items()
        if done
    }


def vectors_of(run: RunFolder, images: Table, split: str) -> Floats:
    """The vectors of the images of a split by the model of a run, which keeps them."""
    path = run.path / f"{split}.npy"
    if not path.exists():
        np.save(path, Embedder.from_pretrained(run.model).embed(images, progress=False))
    return np.load(path)


def vectors_before(runs: Runs, images: Table) -> Floats:
    """The vectors of images by the features that all methods start from."""
    return runs.start.zero_shot(runs.question.regime).embed(images, progress=False)


def _print_condition(runs: Runs, condition: str, found: Found) -> None:
    if not found:
        return
    test = runs.start.table.subset(runs.question.split)
    reference = runs.question.reference if runs.question.reference in found else next(iter(found))
    means = {method: mean_evaluation(each) for method, each in found.items()}
    means[NOT_TRAINED] = evaluate(vectors_before(runs, test), test)
    own = {name: method.reference or reference for name, method in runs.question.methods.items()}
    results = {each: _compared(means, each, test) for each in {reference, *(own[name] for name in found)}}
    training = evaluations(runs, condition, "train") if runs.question.training_images else {}
    print(f"\n{runs.question.folder}{f', {condition}' if condition else ''}\n")
    print(f"| | recall@1 | mAP@R | mAP@R over {reference} | p | mAP@R of seeds | train recall@1 | tuned |")
    print("|---" * 8 + "|")
    for method in (NOT_TRAINED, *found):
        compared_to = own.get(method, reference)
        rows = results[compared_to].overall(method)
        cells, row = [percent_with_interval(rows.loc[metric]) for metric in METRICS], rows.loc["mAP@R"]
        difference = percent_with_interval(row, "difference")
        difference += "" if compared_to == reference else f" ({compared_to})"
        cells += ["", ""] if method == compared_to else [difference, f"{row['p_value']:.3f}"]
        cells += [_over_seeds(found.get(method, []), "mAP@R"), _over_seeds(training.get(method, []), "recall@1")]
        tuned = {} if method == NOT_TRAINED else runs.tuned(method)
        cells.append(", ".join(f"{key.rpartition('.')[2]} {_short(value)}" for key, value in tuned.items()))
        print(f"| {method} | {' | '.join(cells)} |", flush=True)


def _compared(means: dict[str, Evaluation], reference: str, test: Table) -> ResultsTable:
    """All methods compared with one of them."""
    rest = {method: each for method, each in means.items() if method != reference}
    return compare_models({reference: means[reference], **rest}, test, Resampling())


def _print_overview(runs: Runs, found: dict[str, Found]) -> None:
    for metric in METRICS:
        print(f"\n{runs.question.folder}: {metric}, mean ± deviation over seeds\n")
        print(f"| | {' | '.join(found)} |\n{'|---' * (len(found) + 1)}|")
        for method in runs.question.methods:
            cells = [_over_seeds(each.get(method, []), metric) for each in found.values()]
            print(f"| {method} | {' | '.join(cells)} |")


def _over_seeds(found: list[Evaluation], metric: str) -> str:
    return mean_and_deviation([100 * each.metrics[metric] for each in found])


def _short(value: object) -> str:
    return f"{value:.2g}" if isinstance(value, float) else str(value)
