"""Shorter vectors on Omniglot's unseen alphabets: Matryoshka against what else gives vectors of few dimensions.

    python -m benchmarks.shorter_vectors --root DATA --out RUNS [--seeds 0 1 2]

DATA holds Omniglot's zips. All models are those of recipes/omniglot.yaml with 256 dimensions and 20 epochs; a run that
is in RUNS already is not trained again. Compared are, at each number of dimensions: the first ones of a model trained
with Matryoshka; those of a model trained without; PCA of the latter's embeddings, learned on its training images, with
and without whitening; and a model that was trained with so many dimensions. All 48 classes of both test alphabets
together.
"""

from __future__ import annotations

import argparse
import os
from collections import defaultdict
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import numpy.typing as npt

from benchmarks.omniglot import RECIPE
from benchmarks.table import mean_and_deviation, print_machine
from vicinal import Embedder, Table, evaluate, load_table
from vicinal.models.head import shortened
from vicinal.retrieval import PCAWhitening
from vicinal.training import Recipe, resume
from vicinal.utils.run_folder import RunFolder

DIMS = (16, 32, 64, 128, 256)
FULL = DIMS[-1]
MATRYOSHKA = ["--loss=Matryoshka", "--loss.loss=MultiSimilarityLoss", "--loss.loss.base=0.5", f"--loss.dims={[*DIMS]}"]
METRICS = ("recall@1", "mAP@R")
Vectors = npt.NDArray[np.float32]


def trained(out: Path, name: str, seed: int, settings: list[str]) -> Embedder:
    """The model of a run, which is trained if it is not there yet."""
    run = RunFolder(out / f"{name}-{seed}")
    if not run.model.exists():
        given = ["--epochs=20", "--validation.every=20", f"--seed={seed}", *settings]
        resume(run.path, Recipe.load(RECIPE, given))
    return Embedder.from_pretrained(run.model)


def vectors_by_method(
    out: Path, seed: int, base: list[str], train: Table, test: Table
) -> dict[tuple[str, int], Vectors]:
    """Method and dimensions -> embeddings of the test images."""
    plain = trained(out, f"plain-{FULL}", seed, [*base, f"--model.dim={FULL}"])
    nested = trained(out, "matryoshka", seed, [*base, f"--model.dim={FULL}", *MATRYOSHKA])
    (whole, of_train), first = (plain.embed(table, progress=False) for table in (test, train)), nested.embed(test)
    found = {}
    for dim in DIMS:
        found["Matryoshka, first dimensions", dim] = shortened(first, dim)
        found["without Matryoshka, first dimensions", dim] = shortened(whole, dim)
        found["without Matryoshka, PCA", dim] = PCAWhitening.fit(of_train, dim, shrinkage=1.0).apply(whole)
        found["without Matryoshka, PCA whitening", dim] = PCAWhitening.fit(of_train, dim).apply(whole)
        own = trained(out, f"plain-{dim}", seed, [*base, f"--model.dim={dim}"])
        found["trained with so many dimensions", dim] = own.embed(test, progress=False)
    return found


def main() -> None:
    """Train the missing models, evaluate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="folder that holds Omniglot's zips")
    parser.add_argument("--out", required=True, type=Path, help="folder of the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    table = load_table("omniglot", root=arguments.root)
    train, test = table.subset("train"), table.subset("test")
    scores: dict[str, dict[tuple[str, int], list[float]]] = {name: defaultdict(list) for name in METRICS}
    for seed in arguments.seeds:
        base = [f"--data.root={arguments.root}"]
        for key, vectors in vectors_by_method(arguments.out, seed, base, train, test).items():
            metrics = evaluate(vectors, test).metrics
            for name in METRICS:
                scores[name][key].append(100 * metrics[name])
    print_machine()
    for name in METRICS:
        print(f"\n| {name}, % ({len(arguments.seeds)} seeds) | {' | '.join(map(str, DIMS))} |")
        print("|---" * (len(DIMS) + 1) + "|")
        for method in dict.fromkeys(method for method, _ in scores[name]):
            cells = [mean_and_deviation(scores[name][method, dim]) for dim in DIMS]
            print(f"| {method} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
