"""A new model for the gallery of an old one: what queries find without embedding the gallery anew.

    python -m benchmarks.compatibility grocery emoji --data DATA --runs RUNS --out FOLDER

RUNS has the runs `full-0` and `full-1` of `python -m benchmarks.default_settings full`, which are the old and the new
model; the pretrained network without training is an old model too. Adapters are learned on the training images, and
scores are those of the test classes. On the datasets of `--train` a model is also trained to be compatible with
`full-0`, with the seed of `full-1`. Embeddings are kept in FOLDER.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.default_settings import SIZES, prepare, train
from benchmarks.table import markdown_table, percent_with_interval, print_machine
from vicinal import Embedder, Table, load_table
from vicinal.evaluation import compare_models, evaluate_across, upgrade_warnings
from vicinal.retrieval import LinearAdapter
from vicinal.retrieval.adapter import Method
from vicinal.utils.arrays import Floats
from vicinal.utils.run_folder import RunFolder

METRICS = ("recall@1", "mAP@R")


def embeddings(name: str, run: Path, table: Table, folder: Path) -> dict[str, Floats]:
    """The embeddings of the splits train and test by the model of a run, or by its network before training."""
    vectors = {}
    for split in ("train", "test"):
        path = folder / f"{name}.{split}.npy"
        if not path.exists():
            model = Embedder.from_pretrained(run)
            if name == "zero-shot":
                model = Embedder("efficientnet_lite0", dim=None, norm="none", transform=model.transform)
            np.save(path, model.embed(table.subset(split), progress=False))
        vectors[split] = np.load(path)
    return vectors


def rows(old: dict[str, Floats], new: dict[str, Floats], test: Table) -> tuple[list[list[str]], list[str]]:
    """Scores by query side/gallery side, with intervals over classes, and what the product tells of the upgrade."""
    same = old["test"].shape[1] == new["test"].shape[1]
    methods: list[Method] = ["procrustes", "ridge"] if same else ["ridge"]
    found: dict[str, Any] = {}
    told: list[str] = []
    for method in methods:
        adapter = LinearAdapter.fit(old["train"], new["train"], method)
        evaluated = evaluate_across(old["test"], new["test"], test, adapter, recall_at=[1])
        told += [f"{method}: {text}" for text in upgrade_warnings(evaluated, test)]
        found |= {f"{name}, {method}" if name == "new/adapted" else name: each for name, each in evaluated.items()}
    results = compare_models(found, test)
    lines = []
    for name in found:
        scores = results.overall(name)
        lines.append([name, *(percent_with_interval(scores.loc[metric]) for metric in METRICS)])
    return lines, told


def main() -> None:
    """Print a table per dataset."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+", choices=SIZES)
    parser.add_argument("--data", required=True, type=Path, help="folder of the archives")
    parser.add_argument("--runs", required=True, type=Path, help="folder of the runs of benchmarks.default_settings")
    parser.add_argument("--out", required=True, type=Path, help="folder of embeddings and compatible runs")
    parser.add_argument("--train", nargs="*", default=[], choices=SIZES, help="datasets of compatible training")
    arguments = parser.parse_args()
    print_machine()
    for dataset in arguments.datasets:
        path, folder = prepare(dataset, arguments.data, arguments.runs / dataset), arguments.out / dataset
        folder.mkdir(parents=True, exist_ok=True)
        table, runs = load_table(str(path), root=str(path.parent)), arguments.runs / dataset
        models = {name: RunFolder(runs / name).model for name in ("full-0", "full-1")}
        pairs = [("zero-shot", "full-1"), ("full-0", "full-1")]
        if dataset in arguments.train:
            compatible = folder / "compatible"
            flags = [f"--compatible_with={runs / 'full-0'}"]
            train(path, SIZES[dataset], compatible, flags, seed=1)
            models["compatible"] = RunFolder(compatible).model
            pairs.append(("full-0", "compatible"))
        vectors = {name: embeddings(name, model, table, folder) for name, model in models.items()}
        vectors["zero-shot"] = embeddings("zero-shot", models["full-1"], table, folder)
        for old, new in pairs:
            lines, told = rows(vectors[old], vectors[new], table.subset("test"))
            print(f"\n{dataset}, {old} -> {new}\n")
            print(markdown_table(["queries/gallery", *METRICS], lines), flush=True)
            print("\n".join(told), flush=True)


if __name__ == "__main__":
    main()
