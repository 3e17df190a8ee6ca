"""The context refiner on Omniglot's unseen alphabets, over three base losses, and what it is compared with.

    python -m benchmarks.omniglot_refiner --root DATA --out RUNS            # everything; goes on where it stopped
    python -m benchmarks.omniglot_refiner --root DATA --out RUNS --tables   # prints the finished runs

DATA holds Omniglot's zips. For every base loss and seed: an embedder by recipes/omniglot.yaml, then refiners on its
embeddings of the training alphabets, judged while they train by the validation alphabet: as `vicinal refine` makes
them; without neighbors; and with what bears on neighbors of training images that look too good. Cross-fitted is one
whose embedder learns from half of the characters only, and the refiner from the other half. All are scored on the
test alphabets, together. Where the validation alphabet refused a refiner, it is trained once more with `--keep last`,
and its scores are shown; benchmarks/refiner_grid.py has more settings, datasets and numbers of images per class.
Then, for one seed of multi-similarity, depths by numbers of neighbors, and queries that see the gallery alone.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import numpy.typing as npt
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import normalized_mutual_info_score

from benchmarks.omniglot import RECIPE
from benchmarks.table import mean_and_deviation, print_machine
from vicinal import ContextRefiner, Embedder, Table, evaluate, load_table
from vicinal.retrieval import ContextualReranking, NeighborAverage, QueryExpansion, Refinement, Reranking, refine
from vicinal.retrieval.query_gallery import QueryGallery
from vicinal.retrieval.scores import UnitVectors
from vicinal.training import Recipe, RefinerRecipe, resume
from vicinal.utils.errors import NotBetterError
from vicinal.utils.files import write_bytes
from vicinal.utils.run_folder import RunFolder
from vicinal.workflows.refine import resume_refiner

BASES = {
    "multi-similarity": ["--optimizer.lr=0.003"],
    "margin": ["--loss=MarginLoss", "--optimizer.lr=0.003"],
    "proxy-anchor": ["--loss=ProxyAnchorLoss", "--optimizer.lr=0.003"],
}
REFINERS = {
    "refined": [],
    "blocks only": ["--refiner.context=self"],
    "recall@1 may fall": ["--guardrail_metrics=[]"],
    "cross-fitted": ["--embedder_fraction=0.5"],
}
VARIANTS = {  # of multi-similarity alone
    "without noise": ["--augmentation.noise=0"],
    "neighbors dropped": ["--augmentation.neighbor_dropout=0.3"],
    "random number of neighbors": ["--augmentation.random_num_neighbors=true"],
    "loss of Eq. (4)": ["--loss=MultiSimilarityLoss", "--loss.base=1", "--loss.plus_one=false", "--loss.miner=null"],
}
GRID = [(depth, neighbors) for depth in (1, 2, 4, 8) for neighbors in (2, 4, 8, 16)]
RERANKINGS: dict[str, Reranking] = {
    "neighbors averaged only": NeighborAverage(n=8),
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
        self.table = load_table("omniglot", root=root).subset("test")

    @property
    def refiners(self) -> dict[str, list[str]]:
        """Settings of the refiners, by name."""
        return {**REFINERS, **(VARIANTS if self.base == "multi-similarity" else {})}

    @property
    def embedder(self) -> RunFolder:
        return RunFolder(self.out / "embedder")

    def refiner(self, name: str) -> RunFolder:
        return RunFolder(self.out / "".join(c if c.isalnum() else "-" for c in name))

    def train(self) -> None:
        """The embedder and every refiner that is not there yet."""
        if not self.embedder.model.exists():
            settings = [*BASES[self.base], f"--data.root={self.root}", f"--seed={self.seed}", "--accelerator=cpu"]
            resume(self.embedder.path, Recipe.load(RECIPE, settings))
        for name, settings in self.refiners.items():
            self.train_refiner(name, settings)

    def train_refiner(self, name: str, settings: list[str]) -> None:
        run = self.refiner(name)
        if not run.model.exists() and not self._refused(run).exists():
            own = [f"--run={self.embedder.path}", f"--seed={self.seed}", "--accelerator=cpu"]
            try:
                resume_refiner(run.path, RefinerRecipe.load(overrides=[*own, *settings]))
            except NotBetterError as error:
                last = self._last(run)
                resume_refiner(last.path, RefinerRecipe.load(overrides=[*own, *settings, "--keep=last"]))
                self._refused(run).write_text(str(error))

    def _refused(self, run: RunFolder) -> Path:
        return run.path.with_suffix(".refused")

    def _last(self, run: RunFolder) -> RunFolder:
        """The run of a refiner that was refused and is kept for its scores."""
        return RunFolder(run.path.with_name(f"{run.path.name}-last"))

    def scores(self) -> dict[str, Scores]:
        """What was measured, by name; found once and kept."""
        path = self.out / "test.json"
        if not path.exists():
            write_bytes(path, json.dumps(dict(self._scores())).encode())
        found: dict[str, Scores] = json.loads(path.read_text())
        return found

    def _scores(self) -> Iterator[tuple[str, Scores]]:
        vectors = self._embed(self.embedder)
        yield "base", self._of(vectors)
        for name, method in RERANKINGS.items():
            yield name, self._reranked(vectors, method)
        for name in self.refiners:
            of_half, run = name == "cross-fitted", self.refiner(name)
            if of_half and not run.model.exists():
                run = self._last(run)
            own = self._embed(RunFolder(run.embedder)) if of_half else vectors
            if of_half:
                yield "base of cross-fitted, half of the characters", self._of(own)
            yield from self._refined(name, own)

    def _reranked(self, vectors: Vectors, method: Reranking) -> Scores:
        """Clusters are those of the queries' vectors, where a method moves them."""
        unit = UnitVectors(vectors, "embedding")
        moved = method.apply(QueryGallery(unit, unit, np.arange(len(unit)))).queries
        scores = evaluate(vectors, self.table, rerank=method).metrics
        return scores if moved is unit else {**scores, "NMI": self._of(moved.block(0, len(moved)).numpy())["NMI"]}

    def _refined(self, name: str, vectors: Vectors) -> Iterator[tuple[str, Scores]]:
        """After every block, too, for one that is always there."""
        run = self.refiner(name)
        refused = {} if run.model.exists() else {"refused": 1.0}
        refiner = ContextRefiner.from_pretrained(self._last(run).model if refused else run.model)
        if name == "recall@1 may fall":
            for depth in range(1, refiner.depth):
                yield f"after block {depth}", self._of(refine(refiner, vectors, depth=depth))
        yield name, {**self._of(refine(refiner, vectors)), **refused}

    def of_grid(self, depth: int, neighbors: int) -> Scores:
        """Of a refiner of this depth and number of neighbors; trained if it is not there."""
        name = f"grid {depth} {neighbors}"
        sizes = [f"--refiner.depth={depth}", f"--refiner.neighbors={neighbors}"]
        self.train_refiner(name, [*sizes, "--guardrail_metrics=[]"])
        return dict(self._refined(name, self._embed(self.embedder)))[name]

    def contexts(self) -> dict[str, Scores]:
        """With queries apart from the gallery: base, and refined by everything or by the gallery alone."""
        vectors, queries = self._embed(self.embedder), np.arange(len(self.table)) % 3 == 0
        table = Table(self.table.frame.assign(is_query=queries, is_gallery=~queries))
        run = self.refiner("recall@1 may fall")
        refiner = ContextRefiner.from_pretrained((run if run.model.exists() else self._last(run)).model)
        methods = {f"context: {context}": Refinement(refiner, context) for context in ("everything", "gallery")}
        found = {name: evaluate(vectors, table, rerank=method).metrics for name, method in methods.items()}
        return {"base": evaluate(vectors, table).metrics, **found}

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
        cells = [
            mean_and_deviation([100 * scores[metric] for scores in found if metric in scores]) for metric in METRICS
        ]
        refused = sum("refused" in scores for scores in found)
        print(f"| {name} | {' | '.join(cells)} | {len(found)}{f', {refused} refused' if refused else ''} |")


def print_grid(bench: Bench) -> None:
    """Recall@1 and mAP@R of refiners of other depths and numbers of neighbors, trained for it, whatever they bring."""
    print(f"\n{bench.out.name}: recall@1, mAP@R\n\n| blocks | {' | '.join(f'k = {k}' for k in (2, 4, 8, 16))} |")
    print("|---|---|---|---|---|")
    for depth in (1, 2, 4, 8):
        cells = [_pair(bench.of_grid(*place)) for place in GRID if place[0] == depth]
        print(f"| {depth} | {' | '.join(cells)} |", flush=True)


def print_contexts(bench: Bench) -> None:
    """A third of the images are queries that come one by one, or all are known: the same refiner, scored on both."""
    print(f"\n{bench.out.name}: a third of the images are queries\n\n| | recall@1, mAP@R |\n|---|---|")
    for name, scores in bench.contexts().items():
        print(f"| {name} | {_pair(scores)} |", flush=True)


def _pair(scores: Scores) -> str:
    return ", ".join(f"{100 * scores[metric]:.1f}" for metric in METRICS[:2])


def main() -> None:
    """Train, score, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="folder that holds Omniglot's zips")
    parser.add_argument("--out", required=True, type=Path, help="folder of the runs")
    parser.add_argument("--bases", nargs="+", choices=BASES, default=list(BASES))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tables", action="store_true", help="print the finished runs and train nothing")
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
    if "multi-similarity" in benches and not arguments.tables:
        print_contexts(benches["multi-similarity"][0])
        print_grid(benches["multi-similarity"][0])


if __name__ == "__main__":
    main()
