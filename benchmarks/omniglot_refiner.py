"""The context refiner on Omniglot's unseen alphabets, over three base losses, and what it is compared with.

    python -m benchmarks.omniglot_refiner --root DATA --out RUNS            # everything; goes on where it stopped
    python -m benchmarks.omniglot_refiner --root DATA --out RUNS --tables   # prints what is done

DATA holds Omniglot's zips. For every base loss and seed: an embedder by recipes/omniglot.yaml, then refiners on its
embeddings of the training alphabets, judged while they train by the validation alphabet: as `vicinal refine` makes
them; without neighbours; with neighbours left out at random; and cross-fitted, for which an embedder learns from half
of the characters only and the refiner from the other half. All are scored on the test alphabets, together: a refiner
looks for neighbours among all of their images.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import numpy.typing as npt
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import normalized_mutual_info_score

from benchmarks.omniglot import RECIPE
from benchmarks.table import print_machine
from vicinal import ContextRefiner, Embedder, Table, evaluate
from vicinal.errors import NotBetterError
from vicinal.refining import resume_refiner
from vicinal.retrieval import ContextualReranking, NeighborAverage, QueryExpansion, Reranking, refine
from vicinal.training import Recipe, RefinerRecipe, RunFolder, resume

BASES = {
    "multi-similarity": ["--optimizer.lr=0.003"],
    "margin": ["--loss=MarginLoss", "--optimizer.lr=0.003"],
    "proxy-anchor": ["--loss=ProxyAnchorLoss", "--optimizer.lr=0.003"],
}
REFINERS = {
    "refined": [],
    "blocks only": ["--refiner.context=itself"],
    "refined, fewer neighbours in training": ["--neighborhood.dropout=0.3", "--neighborhood.random_size=true"],
    "cross-fitted": ["--cross_fit=0.5"],
}
RERANKINGS: dict[str, Reranking] = {
    "neighbours averaged only": NeighborAverage(n=8),
    "alpha query expansion": QueryExpansion(n=8),
    "contextual re-ranking": ContextualReranking(k=16),
}
METRICS = ("recall@1", "mAP@R", "NMI")
Vectors = npt.NDArray[np.float32]
Scores = dict[str, float]


class Bench:
    """The runs of one base loss and seed, and their scores on the test alphabets.

    Args:
        root: of Omniglot's zips.
        out: folder of all runs.
        base: name of the base loss.
        seed: of embedder and refiners.
    """

    def __init__(self, root: str, out: Path, base: str, seed: int) -> None:
        self.root, self.seed, self.base = root, seed, base
        self.out = out / f"{base}-{seed}"
        self.table = Table.load("omniglot", root=root).subset("test")

    @property
    def embedder(self) -> RunFolder:
        return RunFolder(self.out / "embedder")

    def refiner(self, name: str) -> RunFolder:
        return RunFolder(self.out / name.replace(",", "").replace(" ", "-"))

    def train(self) -> None:
        """The embedder and every refiner that is not there yet."""
        if not self.embedder.model.exists():
            settings = [*BASES[self.base], f"--data.root={self.root}", f"--seed={self.seed}", "--accelerator=cpu"]
            resume(self.embedder.path, Recipe.load(RECIPE, settings))
        for name, settings in REFINERS.items():
            run = self.refiner(name)
            if not run.curves.exists():  # written by those that do not help as well
                own = [f"--run={self.embedder.path}", f"--seed={self.seed}", "--accelerator=cpu"]
                with suppress(NotBetterError):
                    resume_refiner(run.path, RefinerRecipe.load(overrides=[*own, *settings]))

    def scores(self) -> dict[str, Scores]:
        """What was measured, by name; found once and kept."""
        path = self.out / "test.json"
        if not path.exists():
            path.write_text(json.dumps(dict(self._scores())))
        found: dict[str, Scores] = json.loads(path.read_text())
        return found

    def _scores(self) -> Iterator[tuple[str, Scores]]:
        vectors = self._embed(self.embedder)
        yield "base", self._of(vectors)
        for name, method in RERANKINGS.items():
            metrics = evaluate(vectors, self.table, rerank=method).metrics
            yield name, {metric: metrics[metric] for metric in METRICS[:2]}
        for name in REFINERS:
            of_half = name == "cross-fitted"
            own = self._embed(RunFolder(self.refiner(name).embedder)) if of_half else vectors
            if of_half:
                yield "base of cross-fitted, half of the characters", self._of(own)
            yield from self._refined(name, own)

    def _refined(self, name: str, vectors: Vectors) -> Iterator[tuple[str, Scores]]:
        """After every block, too, for the first of them; as the base where none was written, for it would not help."""
        run = self.refiner(name)
        if not run.model.exists():
            yield f"{name}: none", self._of(vectors)
            return
        refiner = ContextRefiner.from_pretrained(run.model)
        if name == "refined":
            for depth in range(1, refiner.depth):
                yield f"after block {depth}", self._of(refine(refiner, vectors, depth=depth))
        yield name, self._of(refine(refiner, vectors))

    def _embed(self, run: RunFolder) -> Vectors:
        return Embedder.from_pretrained(run.model).embed(self.table, progress=False)

    def _of(self, vectors: Vectors) -> Scores:
        metrics, labels = evaluate(vectors, self.table).metrics, self.table.labels
        clusters = KMeans(len(self.table.classes), n_init=3, random_state=0).fit_predict(vectors)
        return {**metrics, "NMI": float(normalized_mutual_info_score(labels, clusters))}


def print_table(base: str, runs: list[dict[str, Scores]]) -> None:
    """Mean and standard deviation over the seeds, in percent."""
    print(f"\n{base}, {len(runs)} seeds\n\n| % | {' | '.join(METRICS)} | seeds |\n{'|---' * (len(METRICS) + 2)}|")
    for name in dict.fromkeys(name for run in runs for name in run):
        found = [run[name] for run in runs if name in run]
        cells = [_cell([100 * scores[metric] for scores in found if metric in scores]) for metric in METRICS]
        print(f"| {name} | {' | '.join(cells)} | {len(found)} |")


def _cell(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}" if values else ""


def main() -> None:
    """Train, score, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="folder that holds Omniglot's zips")
    parser.add_argument("--out", required=True, type=Path, help="folder of the runs")
    parser.add_argument("--bases", nargs="+", choices=BASES, default=list(BASES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tables", action="store_true", help="print what is done and train nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    benches = {
        base: [Bench(arguments.root, arguments.out, base, seed) for seed in arguments.seeds] for base in arguments.bases
    }
    if not arguments.tables:
        for bench in (bench for of_base in benches.values() for bench in of_base):
            print(f"{bench.out.name}", file=sys.stderr, flush=True)
            bench.train()
            bench.scores()
    print_machine()
    for base, of_base in benches.items():
        print_table(base, [bench.scores() for bench in of_base if (bench.out / "test.json").exists()])


if __name__ == "__main__":
    main()
