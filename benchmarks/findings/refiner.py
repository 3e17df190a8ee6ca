"""Does the context refiner gain where classes are small and the network has ImageNet weights?

    python -m benchmarks.findings.refiner --dataset emoji --root DATA --out RUNS            # goes on where it stopped
    python -m benchmarks.findings.refiner --dataset grocery_imagenet --root DATA --out RUNS --seeds 0

DATA holds emoji.zip or grocery.zip, RUNS the runs of `python -m benchmarks.findings losses` on that dataset. Refiners
are trained on the embeddings of the training images, and judged by the validation classes; one that they refuse is
trained once more with `--keep last` and counted. The context of a test image consists of its nearest test images.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from benchmarks.findings.question import FROM_IMAGENET, Question
from benchmarks.findings.runs import Runs
from benchmarks.pretrained import mean_evaluation
from benchmarks.refiner_grid import PAPER, REFINERS, train_refiner
from benchmarks.table import percent_with_interval, print_machine
from vicinal import ContextRefiner, Embedder, evaluate
from vicinal.data import load_embeddings, save_embeddings
from vicinal.evaluation import Evaluation, Resampling, compare_models
from vicinal.retrieval import Refinement
from vicinal.utils.run_folder import RunFolder

BASES = ("contrastive", "multi-similarity", "NT-Xent", "NormSoftmax", "ProxyAnchor")
NAMES = ("default", "paper", "blocks only")
METRICS = ("recall@1", "mAP@R")


class Refined:
    """A run, its embeddings, and the refiners that are trained on them.

    Args:
        runs: those of the question that the run belongs to.
        run: its folder.
        seed: of the run and of its refiners.
    """

    def __init__(self, runs: Runs, run: RunFolder, seed: int) -> None:
        self.runs, self.run, self.seed = runs, run, seed
        self.embeddings = run.path / "embeddings.parquet"
        self.refused: set[str] = set()

    def embed(self) -> None:
        """Write the embeddings of all images, unless they are there."""
        if not self.embeddings.exists():
            model, table = Embedder.from_pretrained(self.run.model), self.runs.start.table
            save_embeddings(self.embeddings, model.embed(table, progress=False), table, model.fingerprint())

    def train(self, name: str) -> ContextRefiner:
        """A refiner; one that the validation classes refuse has its last weights."""
        flags = [f"--seed={self.seed}", *REFINERS[name]]
        recipe = PAPER if name == "paper" else None
        out = self.run.path.with_name(f"{self.run.path.name}-refiner-{name.replace(' ', '-')}")
        refiner, is_refused = train_refiner(out, self.embeddings, flags, recipe)
        if is_refused:
            self.refused.add(name)
        return refiner

    def evaluate(self, name: str | None = None) -> Evaluation:
        """The scores of the test images, refined if a refiner is named."""
        self.embed()
        vectors, table = load_embeddings(self.embeddings)
        rows = np.flatnonzero(table.frame["split"] == "test")
        rerank = None if name is None else Refinement(self.train(name))
        return evaluate(vectors[rows], table.take(rows), rerank=rerank)


def print_base(base: str, names: list[str], refined: list[Refined]) -> None:
    """The scores of a base loss without and with each refiner, and what the refiners gain."""
    test = refined[0].runs.start.table.subset("test")
    found = {base: mean_evaluation([each.evaluate() for each in refined])}
    found |= {name: mean_evaluation([each.evaluate(name) for each in refined]) for name in names}
    results = compare_models(found, test, Resampling())
    for name in found:
        rows = [results.overall(name).loc[metric] for metric in METRICS]
        cells = [percent_with_interval(row) for row in rows]
        cells += ["", ""] if name == base else [percent_with_interval(row, "difference") for row in rows]
        refused = sum(name in each.refused for each in refined)
        runs = f"{len(refined)}{f', {refused} refused' if refused else ''}"
        print(f"| {name if name == base else f'+ {name}'} | {' | '.join(cells)} | {runs} |", flush=True)


def main() -> None:
    """Embed, train the missing refiners, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", choices=FROM_IMAGENET, required=True)
    parser.add_argument("--root", required=True, help="folder of the files of the dataset")
    parser.add_argument("--out", required=True, type=Path, help="folder of the runs of benchmarks.findings")
    parser.add_argument("--bases", nargs="+", choices=BASES, default=list(BASES))
    parser.add_argument("--refiners", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    runs = Runs(Question.read("losses", arguments.dataset), arguments.root, arguments.out)
    print_machine()
    print("\n| | recall@1 | mAP@R | gain of recall@1 | gain of mAP@R | runs |\n|---|---|---|---|---|---|")
    for base in arguments.bases:
        folders = runs.of(base, "")
        refined = [Refined(runs, folders[seed], seed) for seed in arguments.seeds if seed < len(folders)]
        if refined:
            print_base(base, arguments.refiners, refined)


if __name__ == "__main__":
    main()
