"""Refiners over datasets, base losses and settings, on unseen classes with 2, 5, 10 and 20 images each.

    python -m benchmarks.refiner_grid --root DATA --out RUNS         # everything; goes on where it stopped
    python -m benchmarks.refiner_grid --root DATA --out RUNS --datasets omniglot --refiners default paper
    python -m benchmarks.refiner_grid --root DATA --out RUNS --tables         # prints the finished runs

DATA holds Omniglot's zips and grocery.zip. For every dataset, base loss and seed: an embedder, its embeddings, and one
refiner for each of the settings. A refiner that the validation classes refuse is trained once more with `--keep last`,
so that every row shows what the refiner does; the table says how many were refused. The test classes choose nothing.

The datasets: `omniglot` with 20 images per class, and `omniglot5`, the same embeddings of which refiners see five per
class; `glyphs` with 2 to 12 per class, as in Stanford Online Products; `grocery`, photographs of products. Embedders
are trained for 15 epochs, which costs a minute each; those of `omniglot-long` for 40, of `omniglot-half` on every other
training class, of `omniglot-augmented` with smaller crops and larger rotations.
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
import torch

from benchmarks.glyphs import glyphs
from benchmarks.omniglot import RECIPE
from benchmarks.table import mean_and_deviation, print_machine
from vicinal import ContextRefiner, Embedder, Table, load_table
from vicinal.data import load_embeddings, save_embeddings
from vicinal.retrieval.scores import UnitVectors
from vicinal.training import Recipe, RefinerRecipe, resume
from vicinal.training.refiner_validation import RefinerValidation
from vicinal.utils.errors import NotBetterError
from vicinal.utils.files import write_bytes
from vicinal.utils.run_folder import RunFolder
from vicinal.workflows.refine import resume_refiner

BASES = {  # settings over recipes/omniglot.yaml
    "multi-similarity": ["--optimizer.lr=0.003"],
    "margin": ["--loss=MarginLoss", "--optimizer.lr=0.003"],
    "proxy-anchor": ["--loss=ProxyAnchorLoss", "--optimizer.lr=0.003"],
}
PAPER = Path(__file__).parent.parent / "recipes" / "bases" / "context_refiner" / "refiner.yaml"
DATASETS = ("omniglot", "omniglot5", "glyphs", "grocery", "omniglot-long", "omniglot-half", "omniglot-augmented")
SHORT = ["--epochs=15", "--model.dim=128"]  # of every embedder, so that it takes a minute
EMBEDDERS = {  # settings over recipes/omniglot.yaml
    "glyphs": ["--epochs=10", "--samples_per_class=2", "--transform.mean=[0.5]", "--transform.std=[0.5]"],
    "grocery": [
        *("--transform.size=64", "--transform.resize=72", "--transform.channels=3", "--transform.flip=0.5"),
        *("--transform.mean=[0.485,0.456,0.406]", "--transform.std=[0.229,0.224,0.225]"),
    ],
    "omniglot-long": ["--epochs=40"],
    "omniglot-augmented": ["--transform.scale=[0.3,1.0]", "--transform.rotation=30"],
}
REFINERS: dict[str, list[str]] = {
    "default": [],
    "paper": ["--batch_size=null"],  # by its recipe, but that the validation classes are not trained on
    "blocks only": ["--refiner.context=self"],
    "multi-similarity": ["--loss=MultiSimilarityLoss", "--loss.base=0.5"],
    "noise 0.6": ["--augmentation.noise=0.6"],
    "no noise": ["--augmentation.noise=0"],
    "isotropic noise": ["--augmentation.noise_covariance=isotropic"],
    "all images": ["--augmentation.class_sizes=null"],
    "updates as trained": ["--update_factors=[1]"],
    "random start": ["--refiner.attention_start=random"],
    "no null neighbor": ["--refiner.null_similarity=null"],
    "no gate": ["--refiner.residual_gate=false"],
    "4 heads": ["--refiner.num_heads=4"],
    "MLP": ["--refiner.mlp_ratio=1"],
    "tied": ["--refiner.tie_weights=true"],
    "label smoothing": ["--label_smoothing=0.1"],
    "similarity from 0.5": ["--refiner.min_similarity=0.5"],
}
SIZES = (2, 5, 10, 20)
SEEN = ("attention", "neighbors")  # of the own class: the attention to them, and how many they are
METRICS = ("recall@1", "recall@2", "R-precision", "mAP@R", "mAP@1000")
Scores = dict[str, dict[str, float]]  # number of images per class -> metric -> value


class Cell:
    """The runs of one dataset, base loss and seed.

    Args:
        root: of Omniglot's zips and of grocery.zip.
        out: folder of all runs.
        dataset: its name.
        base: name of the base loss.
        seed: of embedder and refiners.
    """

    def __init__(self, root: str, out: Path, dataset: str, base: str, seed: int) -> None:
        self.root, self.dataset, self.base, self.seed = root, dataset, base, seed
        self.out = out / f"{dataset}-{base}-{seed}"
        trained = dataset.removesuffix("5")  # the embedder sees all images
        self.images = out / f"{trained}-{seed}.parquet"
        self.embedder = RunFolder(out / f"{trained}-{base}-{seed}-embedder")

    def embeddings(self) -> Path:
        """The file of the embeddings; made if it is not there."""
        path = self.out / "embeddings.parquet"
        if not path.exists():
            self.out.mkdir(parents=True, exist_ok=True)
            table = load_images(self.dataset, self.root, self.seed)
            if not self.embedder.model.exists():
                self._train_embedder(table)
            model = Embedder.from_pretrained(self.embedder.model)
            if self.dataset == "omniglot5":
                table = few_per_class(table, 5, 5, self.seed)
            save_embeddings(path, model.embed(table, progress=False), table, model.fingerprint())
        return path

    def _train_embedder(self, table: Table) -> None:
        if not self.images.exists():
            (half_of_classes(table) if self.dataset == "omniglot-half" else table).save(self.images)
        settings = [f"--data.source={self.images}", f"--seed={self.seed}", "--accelerator=cpu"]
        more = [*BASES[self.base], *SHORT, *EMBEDDERS.get(self.dataset, [])]
        resume(self.embedder.path, Recipe.load(RECIPE, [*settings, *more]))

    def scores(self, name: str) -> Scores:
        """The scores of one refiner, or of the embeddings themselves as `base`; found once and kept."""
        path = self.path(name)
        if not path.exists():
            refiner, refused = (None, False) if name == "base" else self.train(name)
            scores = measure(self.embeddings(), refiner, self.seed)
            write_bytes(path, json.dumps({"refused": refused, "scores": scores}).encode())
        found: Scores = json.loads(path.read_text())["scores"]
        return found

    def path(self, name: str) -> Path:
        """The file of the scores."""
        return self.out / f"{''.join(c if c.isalnum() else '-' for c in name)}.json"

    def refused(self, name: str) -> bool:
        return bool(json.loads(self.path(name).read_text())["refused"])

    def train(self, name: str) -> tuple[ContextRefiner, bool]:
        """The refiner, and whether the validation classes refused it, so that it has its last weights."""
        flags = [f"--seed={self.seed}", "--validation.every=3", *REFINERS[name]]
        recipe = PAPER if name == "paper" else None
        return train_refiner(self.out / self.path(name).stem, self.embeddings(), flags, recipe)


def train_refiner(
    out: Path, embeddings: Path, flags: list[str], recipe: Path | None = None
) -> tuple[ContextRefiner, bool]:
    """The refiner of a run, and whether the validation classes refused it, so that it has its last weights."""
    run, settings = RunFolder(out), [f"--embeddings={embeddings}", "--accelerator=cpu", *flags]
    if not run.model.exists():
        try:
            resume_refiner(run.path, RefinerRecipe.load(recipe, settings))
        except NotBetterError:
            last = RunFolder(run.path.with_name(f"{run.path.name}-last"))
            resume_refiner(last.path, RefinerRecipe.load(recipe, [*settings, "--keep=last"]))
            return ContextRefiner.from_pretrained(last.model), True
    return ContextRefiner.from_pretrained(run.model), False


def load_images(dataset: str, root: str, seed: int) -> Table:
    """The images of a dataset with its splits."""
    if dataset != "glyphs":
        return load_table("grocery" if dataset == "grocery" else "omniglot", root=root)
    table = glyphs(num_classes=600, samples_per_class=20)
    return few_per_class(table, 2, 12, seed)


def half_of_classes(table: Table) -> Table:
    """The table without every other class of train."""
    keep = (table.frame["split"] != "train") | table.frame["label"].isin(table.subset("train").classes[::2])
    return table.take(keep.to_numpy())


def few_per_class(table: Table, low: int, high: int, seed: int) -> Table:
    """The table with `low` to `high` random images of each class of train and val; the test classes keep all."""
    rng, labels = np.random.default_rng(seed), table.labels
    keep = (table.frame["split"] == "test").to_numpy(copy=True)
    for label in np.unique(labels[~keep]):
        keep[rng.permutation(np.flatnonzero(labels == label))[: rng.integers(low, high + 1)]] = True
    return table.take(keep)


def measure(embeddings: Path, refiner: ContextRefiner | None, seed: int) -> Scores:
    """The scores of the test classes at each number of images per class, refined if a refiner is given."""
    vectors, table = load_embeddings(embeddings)
    rows = np.flatnonzero(table.frame["split"] == "test")
    unit, table = UnitVectors(vectors, "embedding", rows), table.take(rows)
    found: Scores = {}
    for size in SIZES:
        largest = min(1000, size * int((table.class_counts >= size).sum()) - 1)
        metrics = [f"mAP@{largest}"]  # of fewer images than 1,000 it is that of all
        model = refiner or ContextRefiner(vectors.shape[1], depth=1)  # a new refiner is the identity
        test = RefinerValidation.of_class_size(model, unit, table, metrics, size, seed)
        if test is None:
            continue
        scores = dict((test.before if refiner is None else test.after()).metrics)
        scores["mAP@1000"] = scores[metrics[0]]
        if refiner is not None and refiner.context == "neighbors":
            attention = [part.right_class_attention() for part in test.parts]
            scores["attention"], scores["neighbors"] = np.mean(attention, axis=0).tolist()
        found[str(size)] = scores
    return found


def rows_of(cells: list[Cell], size: int) -> Iterator[str]:
    """The rows of a table: the base, and the gains of each refiner over it, mean and deviation over the runs."""
    done = [cell for cell in cells if cell.path("base").exists() and str(size) in cell.scores("base")]
    if not done:
        return
    base = [[100 * cell.scores("base")[str(size)][metric] for cell in done] for metric in METRICS]
    yield f"| base | {' | '.join(mean_and_deviation(values, '.1f') for values in base)} | | | {len(done)} |"
    for name in REFINERS:
        own = [cell for cell in done if cell.path(name).exists()]
        if not own:
            continue
        pairs = [(cell.scores(name)[str(size)], cell.scores("base")[str(size)]) for cell in own]
        gains = [
            mean_and_deviation([100 * (after[each] - before[each]) for after, before in pairs], "+.1f")
            for each in METRICS
        ]
        looks = [mean_and_deviation([100 * after[each] for after, _ in pairs if each in after], ".1f") for each in SEEN]
        refused = sum(cell.refused(name) for cell in own)
        runs = f"{len(own)}{f', {refused} refused' if refused else ''}"
        yield f"| {name} | {' | '.join([*gains, *looks])} | {runs} |"


def print_tables(title: str, cells: list[Cell]) -> None:
    """One table for each number of images per class."""
    for size in SIZES:
        if rows := list(rows_of(cells, size)):
            print(f"\n{title}, {size} images of each test class; refiners: points gained\n")
            print(f"| % | {' | '.join(METRICS)} | right-class attention | if uniform | runs |")
            print("|---" * (len(METRICS) + 4) + "|")
            print(*rows, sep="\n", flush=True)


def main() -> None:
    """Train, score, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="folder that holds the data")
    parser.add_argument("--out", required=True, type=Path, help="folder of the runs")
    parser.add_argument("--datasets", nargs="+", choices=DATASETS, default=list(DATASETS))
    parser.add_argument("--bases", nargs="+", choices=BASES, default=list(BASES))
    parser.add_argument("--refiners", nargs="*", choices=REFINERS, default=list(REFINERS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tables", action="store_true", help="print the finished runs and train nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print_machine()
    for dataset in arguments.datasets:
        cells = [
            Cell(arguments.root, arguments.out, dataset, base, seed)
            for base in arguments.bases
            for seed in arguments.seeds
        ]
        for name in () if arguments.tables else ("base", *arguments.refiners):
            for cell in cells:
                print(f"{cell.out.name}: {name}", file=sys.stderr, flush=True)
                cell.scores(name)
        for base in arguments.bases:
            print_tables(f"{dataset}, {base}", [cell for cell in cells if cell.base == base])
        if len(arguments.bases) > 1:
            print_tables(f"{dataset}, all losses", cells)


if __name__ == "__main__":
    main()
