"""Does fine-tuning the embedder through the refiner give more than a refiner on frozen embeddings?

    python -m benchmarks.refiner_joint --root DATA --out RUNS --jobs 2     # goes on where it stopped
    python -m benchmarks.refiner_joint --root DATA --out RUNS --tables     # prints the finished runs

DATA holds Omniglot's zips. For 5 and 20 images per class, each base loss and seed: an embedder, fine-tuned from a
network that classified rendered characters (benchmarks.pretrained), and a refiner on its embeddings by the defaults of
`vicinal refine`. From these two, the last block, pooling and head of the embedder are trained for 96 more steps by the
loss of refined embeddings, together with the refiner ("joint"); by that of refined and of unrefined ones ("joint, both
losses"); or by that of unrefined ones alone, without a refiner ("fine-tuned"), which then gets a new one.

In joint training the neighbors come from a bank of the embeddings of all training images, refreshed every epoch of 16
steps, with the noise and the numbers of images per class of refiner training. Neighbors that are in the batch are the
embeddings of the step itself, with gradients. The epoch of each run, and with seed 0 the learning rate of each method,
are those of the best mAP@R on the validation classes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.findings.question import REGIMES
from benchmarks.joint_training import EPOCHS, FeatureMaps, JointTraining
from benchmarks.pretrained import Comparison
from benchmarks.refiner_grid import SIZES, Scores, few_per_class, measure, train_refiner
from benchmarks.table import mean_and_deviation, print_machine
from vicinal import ContextRefiner, Embedder, Table, load_table
from vicinal.data import save_embeddings
from vicinal.training import Recipe, resume
from vicinal.utils.files import write_bytes
from vicinal.utils.run_folder import RunFolder

MULTI_SIMILARITY = ["--loss=MultiSimilarityLoss", "--loss.base=0.67", "--optimizer.lr=0.0075"]
BASES = {  # as tuned for docs/findings/losses.md
    "multi-similarity": MULTI_SIMILARITY,
    "multi-similarity, 2 of 8 epochs": [*MULTI_SIMILARITY, "--epochs=2"],
    "Proxy Anchor": ["--loss=ProxyAnchorLoss", "--loss.margin=0.032", "--optimizer.lr=0.0043"],
}
SHORT = ["--model.dim=128", "--steps_per_epoch=17", "--batch_size=128", "--validation.train_images=0"]
METHODS = {"fine-tuned": 0.0, "joint": 1.0, "joint, both losses": 0.5}  # the fraction of the loss of refined embeddings
RATES = (0.0001, 0.0003, 0.001)  # of the embedder
PER_CLASS, SEEDS = (5, 20), (0, 1, 2)
METRICS, SPLITS, BASE = ("recall@1", "mAP@R"), ("val", "test"), "base"
Found = dict[str, dict[str, Scores]]  # split -> refined or not -> scores


@dataclass(frozen=True)
class Cell:
    """The runs of one number of images per class, base loss and seed.

    Args:
        root: of Omniglot's zips.
        out: folder of all runs.
        per_class: number of images of each class of train and val.
        base: name of the base loss.
        seed: of all that is random.
    """

    root: str
    out: Path
    per_class: int
    base: str
    seed: int

    @property
    def path(self) -> Path:
        return self.out / f"{self.per_class}-{_file_name(self.base)}-{self.seed}"

    @cached_property
    def images(self) -> Table:
        """Some images of each class of train and val, and all of test."""
        return few_per_class(load_table("omniglot", root=self.root), self.per_class, self.per_class, self.seed)

    @cached_property
    def maps(self) -> FeatureMaps:
        """What the layers that stay frozen make of them."""
        base = Embedder.from_pretrained(self.path / BASE / "model")
        return FeatureMaps(base, self.images, EPOCHS * max(PER_CLASS) // self.per_class, self.seed)

    def folder(self, method: str, rate: float) -> Path:
        """Of the run with a learning rate."""
        return self.path / f"{_file_name(method)}-{rate:g}"

    def model(self, method: str) -> Path:
        """The folder of the base, or that of a method with its chosen learning rate."""
        return self.path / BASE if method == BASE else self.folder(method, self.best_rate(method))

    def best_rate(self, method: str) -> float:
        """The learning rate with the best validation score with the first seed."""
        return max(RATES, key=lambda rate: replace(self, seed=SEEDS[0]).fine_tune(method, rate))

    def train_base(self) -> None:
        """Train the embedder that all start from."""
        run, source = RunFolder(self.path / BASE), self.path / "images.parquet"
        if not run.model.exists():
            self.path.mkdir(parents=True, exist_ok=True)
            self.images.save(source)
            weights = Comparison("omniglot", self.root, self.out).weights
            own = [f"--data.source={source}", f"--seed={self.seed}", f"--model.pretrained={weights}"]
            resume(
                run.path, Recipe.load(REGIMES / "omniglot.yaml", [*own, *SHORT, *BASES[self.base], "--accelerator=cpu"])
            )

    def fine_tune(self, method: str, rate: float) -> float:
        """Train a model from the base; the best score on the validation classes."""
        folder = self.folder(method, rate)
        path = folder / "validation.json"
        if not path.exists():
            embedder = Embedder.from_pretrained(self.path / BASE / "model")
            refiner, fraction = self.refiner(self.path / BASE), METHODS[method]
            history = JointTraining(embedder, refiner, self.maps, fraction, rate, self.seed).fit()
            embedder.save_pretrained(folder / "model")
            if fraction:
                refiner.save_pretrained(folder / "refiner")
            write_bytes(path, json.dumps(history).encode())
        return max(json.loads(path.read_text()))

    def refiner(self, folder: Path) -> ContextRefiner:
        """The refiner of a model's joint training, or a new one by the defaults."""
        if (folder / "refiner").exists():
            return ContextRefiner.from_pretrained(folder / "refiner")
        return train_refiner(
            folder / "new-refiner", self.embed(folder), [f"--seed={self.seed}", "--validation.every=3"]
        )[0]

    def embed(self, folder: Path) -> Path:
        """The file of a model's embeddings."""
        path = folder / "embeddings.parquet"
        if not path.exists():
            model = Embedder.from_pretrained(folder / "model")
            save_embeddings(path, model.embed(self.images, progress=False), self.images, model.fingerprint())
        return path

    def scores(self, folder: Path) -> Found:
        """The scores of a model; found once and kept."""
        path = folder / "scores.json"
        if not path.exists():
            vectors, refiners = self.embed(folder), {"": None, ", refined": self.refiner(folder)}
            found = {
                split: {name: measure(vectors, each, self.seed, split) for name, each in refiners.items()}
                for split in SPLITS
            }
            write_bytes(path, json.dumps(found).encode())
        result: Found = json.loads(path.read_text())
        return result

    def is_done(self) -> bool:
        """Whether all scores are there."""
        return len(list(self.path.glob("*/scores.json"))) > len(METHODS)


def _file_name(name: str) -> str:
    return name.replace(",", "").replace(" ", "-")


def tune(cell: Cell) -> None:
    """Try every learning rate of every method."""
    cell.train_base()
    for method, rate in product(METHODS, RATES):
        cell.fine_tune(method, rate)


def finish(cell: Cell) -> None:
    """Train with the chosen learning rates, and score."""
    cell.train_base()
    cell.scores(cell.model(BASE))
    for method in METHODS:
        cell.fine_tune(method, cell.best_rate(method))
        cell.scores(cell.model(method))


def print_tables(title: str, cells: Sequence[Cell]) -> None:
    """The scores of the base and the gains over it, for each number of images per class that search each other."""
    done = [cell for cell in cells if cell.is_done()]
    found = {method: [cell.scores(cell.model(method)) for cell in done] for method in (BASE, *METHODS)}
    for split in SPLITS if done else ():
        sizes = [str(size) for size in SIZES if all(str(size) in each[split][""] for each in found[BASE])]
        print(f"\n{title}, {split}, {len(done)} runs; points gained\n\n| % | {' | '.join(sizes)} |")
        print("|---" * (len(sizes) + 1) + "|")
        before = [each[split][""] for each in found[BASE]]
        print(f"| {BASE} | {' | '.join(_cell([each[size] for each in before]) for size in sizes)} |")
        for method, refined in [*product(found, ("", ", refined"))][1:]:
            after = [each[split][refined] for each in found[method]]
            gains = [_cell([each[size] for each in after], [each[size] for each in before]) for size in sizes]
            print(f"| {method}{refined} | {' | '.join(gains)} |", flush=True)


def _cell(scores: Sequence[dict[str, float]], before: Sequence[dict[str, float]] = ()) -> str:
    """Recall@1 and mAP@R in percent, or the points gained; mean and deviation over the runs."""
    form, starts = ("+.1f", before) if before else (".1f", [dict.fromkeys(METRICS, 0.0)] * len(scores))
    columns = [[100 * (a[name] - b[name]) for a, b in zip(scores, starts, strict=True)] for name in METRICS]
    return ", ".join(mean_and_deviation(values, form) for values in columns)


def main() -> None:
    """Tune, train, score, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="folder that holds Omniglot's zips")
    parser.add_argument("--out", required=True, type=Path, help="folder of the runs")
    parser.add_argument("--bases", nargs="+", choices=BASES, default=list(BASES))
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each (default: 1)")
    parser.add_argument("--tables", action="store_true", help="train nothing, print the finished runs")
    arguments = parser.parse_args()
    root, out = arguments.root, arguments.out
    groups = {
        f"{base}, {number} images per class": [Cell(root, out, number, base, seed) for seed in SEEDS]
        for base, number in product(arguments.bases, PER_CLASS)
    }
    cells = [cell for group in groups.values() for cell in group]
    if not arguments.tables:
        Comparison("omniglot", root, out).pretrain()
        with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
            list(pool.map(tune, [cell for cell in cells if cell.seed == SEEDS[0]]))
            list(pool.map(finish, cells))
    print_machine()
    for title, group in groups.items():
        print_tables(title, group)
    print_tables("all runs", cells)


if __name__ == "__main__":
    main()
