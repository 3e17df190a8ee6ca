"""Does fine-tuning the embedder through the refiner give more than a refiner on frozen embeddings?

    python -m benchmarks.refiner_joint --root DATA --out RUNS --jobs 2     # goes on where it stopped
    python -m benchmarks.refiner_joint --root DATA --out RUNS --tables     # prints what is done

DATA holds Omniglot's zips. For 5 and 20 images per class, each base loss and seed: an embedder, fine-tuned from a
network that classified rendered characters (benchmarks.pretrained), and a refiner on its embeddings by the defaults of
`vicinal refine`. From these two, the last block, pooling and head of the embedder are trained for 160 steps by the loss
of refined embeddings, together with the refiner (joint); by that of refined and unrefined ones; and without a refiner
(fine-tuned). In joint training the neighbors come from a bank of the embeddings of all training images, refreshed every
epoch of 16 steps with the noise and the numbers of images per class of refiner training. Neighbors that are in the
batch are those of the step itself, with gradients. Every model is then scored without a refiner, with a new refiner by
the defaults, and with the refiner of the joint training. The learning rate of each method, size and base loss is that
with the best mAP@R on validation classes, mean over the seeds, and so is the epoch of each run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.findings.question import REGIMES
from benchmarks.pretrained import Comparison
from benchmarks.refiner_grid import SIZES, Scores, few_per_class, measure, train_refiner
from benchmarks.table import mean_and_deviation, print_machine
from vicinal import ContextRefiner, Embedder, Table, evaluate, load_table
from vicinal.data import ClassBalancedBatchSampler, ImageDataset, TestBatches, TrainBatches, save_embeddings
from vicinal.losses import SmoothAPLoss
from vicinal.models import train_last_blocks
from vicinal.models.modes import eval_mode
from vicinal.retrieval import Refinement
from vicinal.retrieval.scores import UnitVectors
from vicinal.training import Recipe, resume
from vicinal.training.refiner_context import TrainingContext
from vicinal.training.refiner_noise import matching_noise
from vicinal.training.refiner_settings import ContextAugmentation, RefinerOptimizer
from vicinal.training.schedule import Schedule
from vicinal.utils.files import write_bytes
from vicinal.utils.run_folder import RunFolder
from vicinal.utils.seeds import derive_seed

BASES = {  # as tuned for docs/findings/losses.md
    "multi-similarity": ["--loss=MultiSimilarityLoss", "--loss.base=0.67", "--optimizer.lr=0.0075"],
    "Proxy Anchor": ["--loss=ProxyAnchorLoss", "--loss.margin=0.032", "--optimizer.lr=0.0043"],
}
SHORT = ["--model.dim=128", "--steps_per_epoch=17", "--batch_size=128", "--validation.train_images=0"]
METHODS = {"fine-tuned": 0.0, "joint": 1.0, "joint, both": 0.5}  # the fraction of the loss of refined embeddings
RATES = (0.0001, 0.0003, 0.001)  # of the embedder; that of the refiner is its default
PER_CLASS, SEEDS = (5, 20), (0, 1, 2)
EPOCHS, STEPS, BATCH_SIZE = 6, 16, 128
METRICS, SPLITS = ("recall@1", "mAP@R"), ("val", "test")
FROZEN = ("conv1", "bn1", "act1", "maxpool", "layer1", "layer2", "layer3")  # of the backbone
TRAINED = "layer4"  # the last block


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
        return self.out / f"{self.per_class}-{self.base.replace(' ', '-')}-{self.seed}"

    def images(self) -> Table:
        return few_per_class(load_table("omniglot", root=self.root), self.per_class, self.per_class, self.seed)

    def folder(self, method: str, rate: float) -> Path:
        return self.path / f"{method.replace(', ', '-')}-{rate:g}"

    def make_base(self) -> None:
        """Train the embedder that all start from."""
        run, source = RunFolder(self.path / "base"), self.path / "images.parquet"
        if not run.model.exists():
            self.path.mkdir(parents=True, exist_ok=True)
            self.images().save(source)
            weights = Comparison("omniglot", self.root, self.out).weights
            start = [f"--data.source={source}", f"--seed={self.seed}", f"--model.pretrained={weights}"]
            recipe = Recipe.load(REGIMES / "omniglot.yaml", [*start, *SHORT, *BASES[self.base], "--accelerator=cpu"])
            resume(run.path, recipe)

    def best_rate(self, method: str) -> float:
        """The learning rate with the best validation score, mean over the seeds."""
        cells = [replace(self, seed=seed) for seed in SEEDS]
        return max(RATES, key=lambda rate: np.mean([cell.fine_tune(method, rate) for cell in cells]))

    def scores(self, folder: Path) -> dict[str, dict[str, Scores]]:
        """Split -> without and with refiner -> scores of a model; found once and kept."""
        path = folder / "scores.json"
        if not path.exists():
            own, vectors = folder / "refiner", embed(folder, self.images())
            refiner = ContextRefiner.from_pretrained(own) if own.exists() else self.new_refiner(folder)
            refiners = {"": None, "refined": refiner}
            found = {
                split: {name: measure(vectors, each, self.seed, split) for name, each in refiners.items()}
                for split in SPLITS
            }
            write_bytes(path, json.dumps(found).encode())
        result: dict[str, dict[str, Scores]] = json.loads(path.read_text())
        return result

    def new_refiner(self, folder: Path) -> ContextRefiner:
        """A refiner by the defaults on the embeddings of a model."""
        flags = [f"--seed={self.seed}", "--validation.every=3"]
        return train_refiner(folder / "new-refiner", embed(folder, self.images()), flags)[0]

    def fine_tune(self, method: str, rate: float) -> float:
        """Train a model from the base; the best score on the validation classes."""
        folder = self.folder(method, rate)
        path = folder / "validation.json"
        if not path.exists():
            embedder, refiner = self.start()
            history = JointTraining(embedder, refiner, self.maps, METHODS[method], rate, self.seed).fit()
            embedder.save_pretrained(folder / "model")
            if METHODS[method]:
                refiner.save_pretrained(folder / "refiner")
            write_bytes(path, json.dumps(history).encode())
        return max(json.loads(path.read_text()))

    def start(self) -> tuple[Embedder, ContextRefiner]:
        """The base and a refiner by the defaults on its embeddings, from which all others start."""
        return Embedder.from_pretrained(self.path / "base" / "model"), self.new_refiner(self.path / "base")

    @cached_property
    def maps(self) -> FeatureMaps:
        return FeatureMaps(self.start()[0], self.images(), EPOCHS * 20 // self.per_class, self.seed)


def embed(folder: Path, images: Table) -> Path:
    """The file of a model's embeddings."""
    path = folder / "embeddings.parquet"
    if not path.exists():
        model = Embedder.from_pretrained(folder / "model")
        save_embeddings(path, model.embed(images, progress=False), images, model.fingerprint())
    return path


class FeatureMaps:
    """What the layers that are not trained make of the images, computed once.

    Args:
        embedder: with these layers.
        images: with the splits train and val.
        copies: number of augmented copies of each training image.
        seed: of the augmentation.

    Attributes:
        train, val: float [n, c, h, w], of the images as in tests.
        augmented: float [copies, n, c, h, w], of the training images.
        labels: int64 [n], of the training images.
        table: the validation images.
    """

    def __init__(self, embedder: Embedder, images: Table, copies: int, seed: int) -> None:
        parts = [ImageDataset(images.subset(split), embedder.transform) for split in ("train", "val")]
        self.labels, self.table = parts[0].table.labels, parts[1].table
        self.layers = nn.Sequential(*(embedder.backbone.get_submodule(name) for name in FROZEN)).eval()
        self.train, self.val = (self._maps(TestBatches(part, BATCH_SIZE)) for part in parts)
        rows = np.array_split(np.arange(len(self.labels)), len(self.labels) // BATCH_SIZE)
        plan = [each.tolist() for each in rows]
        self.augmented = torch.stack([self._maps(TrainBatches(parts[0], plan, (seed, copy))) for copy in range(copies)])

    @torch.no_grad()
    def _maps(self, batches: TestBatches | TrainBatches) -> Tensor:
        return torch.cat([self.layers(batches[i]["images"]) for i in range(len(batches))])


class JointTraining:
    """Trains the last block, pooling and head of an embedder with a refiner.

    Args:
        embedder: is changed.
        refiner: is changed.
        maps: of the images.
        fraction: of the loss of refined embeddings; the rest is that of unrefined ones.
        rate: highest learning rate of the embedder.
        seed: of batches and noise.
    """

    def __init__(
        self, embedder: Embedder, refiner: ContextRefiner, maps: FeatureMaps, fraction: float, rate: float, seed: int
    ) -> None:
        self.embedder, self.refiner, self.maps, self.fraction, self.seed = embedder, refiner, maps, fraction, seed
        train_last_blocks(embedder, 1)
        self.loss, self.settings = SmoothAPLoss(), RefinerOptimizer()
        self.optimizer = torch.optim.AdamW(self._groups(rate), weight_decay=self.settings.weight_decay)
        schedule = Schedule("cosine", warmup=1.0)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: schedule.factor(step / STEPS, step, EPOCHS * STEPS)
        )

    def _groups(self, rate: float) -> Iterator[dict[str, Any]]:
        """The parameters with their learning rates; those of the refiner are its defaults."""
        yield {"params": [each for part in self.embedder.parameter_groups().values() for each in part], "lr": rate}
        if self.fraction:
            scalars, matrices = [], []
            for each in self.refiner.parameters():
                (matrices if each.ndim == 2 else scalars).append(each)
            for name, params in {"refiner": matrices, "scalars": scalars}.items():
                yield {"params": params, "lr": self.settings.lr * self.settings.lr_factor(name)}

    def fit(self) -> list[float]:
        """The validation scores before and after every epoch; the models get the weights of the best."""
        whole = self.embedder.backbone
        self.embedder.backbone = whole.get_submodule(TRAINED)  # takes feature maps
        models = nn.ModuleList([self.embedder, self.refiner])
        scores, best = [self.score()], deepcopy(models.state_dict())
        for epoch in range(EPOCHS):
            models.train()
            self.train_epoch(epoch)
            scores.append(self.score())
            if scores[-1] == max(scores):
                best = deepcopy(models.state_dict())
        models.load_state_dict(best)
        self.embedder.backbone = whole
        return scores

    @torch.no_grad()
    def embed(self, maps: Tensor) -> Tensor:
        """The embeddings of feature maps, as in tests."""
        with eval_mode(self.embedder):
            embeddings: Tensor = self.embedder(maps)
        return embeddings

    def score(self) -> float:
        """mAP@R on the validation classes, refined if the loss is."""
        method = Refinement(self.refiner) if self.fraction else None
        vectors = self.embed(self.maps.val)
        return evaluate(vectors, self.maps.table, rerank=method, metrics=["mAP@R"]).metrics["mAP@R"]

    def train_epoch(self, epoch: int) -> None:
        sampler = ClassBalancedBatchSampler(self.maps.labels, BATCH_SIZE, 4, num_batches=STEPS, seed=self.seed)
        sampler.set_epoch(epoch)
        context = self.context(epoch) if self.fraction else None
        generator = torch.Generator().manual_seed(derive_seed(self.seed, epoch))
        for batch in sampler:
            rows = torch.tensor(batch)
            copies = torch.randint(len(self.maps.augmented), rows.shape, generator=generator)
            labels, embeddings = (
                torch.from_numpy(self.maps.labels)[rows],
                self.embedder(self.maps.augmented[copies, rows]),
            )
            loss = (1 - self.fraction) * self.loss(embeddings, labels)
            if context is not None:
                loss = loss + self.fraction * self.loss(self.refine(embeddings, rows, context), labels)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()

    def context(self, epoch: int) -> TrainingContext:
        """The bank of an epoch, and the neighbors of each training image in it."""
        train, val, labels = self.embed(self.maps.train), self.embed(self.maps.val), self.maps.labels
        noise = matching_noise(train, labels, val, self.maps.table.labels, "embeddings", self.seed)
        vectors, augmentation = UnitVectors(train, "embedding"), ContextAugmentation(noise=noise)
        context = TrainingContext(self.refiner, vectors, labels, augmentation, self.seed)
        context.start_epoch(epoch)
        return context

    def refine(self, embeddings: Tensor, rows: Tensor, context: TrainingContext) -> Tensor:
        """The embeddings of a batch, refined by their neighbors, of which those in the batch have gradients."""
        bank = context.embeddings.index_copy(0, rows, embeddings)
        refined: Tensor = self.refiner(embeddings, bank[context.neighbors[rows]])
        return refined


def tune(cell: Cell) -> None:
    """Try every learning rate of every method."""
    cell.make_base()
    for method, rate in product(METHODS, RATES):
        cell.fine_tune(method, rate)


def finish(cell: Cell) -> None:
    """Train with the chosen learning rates, and score."""
    cell.make_base()
    cell.scores(cell.path / "base")
    for method in METHODS:
        cell.fine_tune(method, cell.best_rate(method))
        cell.scores(cell.folder(method, cell.best_rate(method)))


def print_tables(title: str, cells: list[Cell]) -> None:
    """The scores of the base, and the gains over it, mean and deviation over the runs, of each split."""
    done = [cell for cell in cells if cell.is_done()]
    if not done:
        return
    base = [cell.scores(cell.path / "base") for cell in done]
    for split in SPLITS:
        sizes = [str(size) for size in SIZES if str(size) in base[0][split][""]]
        print(f"\n{title}, {split}, {len(done)} runs\n\n| % | {' | '.join(sizes)} |\n{'|---' * (len(sizes) + 1)}|")
        print(f"| base | {' | '.join(_cell([each[split][''][size] for each in base]) for size in sizes)} |")
        for method, how in product(("base", *METHODS), HOW):
            found = [cell.scores(cell.folder(method, cell.best_rate(method))) for cell in done]
            if how in found[0][split] and (method, how) != ("base", ""):
                pairs = [(after[split][how], before[split][""]) for after, before in zip(found, base, strict=True)]
                values = [
                    _cell([after[size] for after, _ in pairs], [each[size] for _, each in pairs]) for size in sizes
                ]
                print(f"| {method}{how and ', '}{how} | {' | '.join(values)} |", flush=True)


def _cell(scores: list[dict[str, float]], before: list[dict[str, float]] | None = None) -> str:
    """Recall@1 and mAP@R in percent, or the points gained."""
    start = before or [dict.fromkeys(METRICS, 0.0)] * len(scores)
    form = "+.1f" if before else ".1f"
    columns = [[100 * (a[name] - b[name]) for a, b in zip(scores, start, strict=True)] for name in METRICS]
    return ", ".join(mean_and_deviation(values, form) for values in columns)


def main() -> None:
    """Tune, train, score, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="folder that holds Omniglot's zips")
    parser.add_argument("--out", required=True, type=Path, help="folder of the runs")
    parser.add_argument("--bases", nargs="+", choices=BASES, default=list(BASES))
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one thread each (default: 1)")
    parser.add_argument("--tables", action="store_true", help="train nothing, print what is done")
    arguments = parser.parse_args()
    groups = {
        f"{base}, {number} images per class": [
            Cell(arguments.root, arguments.out, number, base, seed) for seed in SEEDS
        ]
        for base, number in product(arguments.bases, PER_CLASS)
    }
    cells = [cell for group in groups.values() for cell in group]
    if not arguments.tables:
        Comparison("omniglot", arguments.root, arguments.out).pretrain()
        with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
            list(pool.map(tune, [cell for cell in cells if cell.seed == SEEDS[0]]))
            list(pool.map(finish, cells))
    print_machine()
    for title, group in groups.items():
        print_tables(title, group)
    print_tables("together", cells)


if __name__ == "__main__":
    main()
