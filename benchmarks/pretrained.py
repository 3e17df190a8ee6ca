"""What training adds to a pretrained model, on unseen classes: zero-shot, frozen + head, LoRA, full fine-tuning.

    python -m benchmarks.pretrained omniglot --root DATA --out RUNS          # goes on where it stopped
    python -m benchmarks.pretrained grocery --root DATA --out RUNS --tables  # prints the finished runs

DATA holds Omniglot's zips, or grocery.zip. No published weights are used. The stand-in for Omniglot learns to classify
thousands of rendered characters, none of them Greek, because Greek is tested. That for Grocery learns from the training
photos without their labels: two crops of a photo are a positive pair, all others are negatives (SimCLR). Each method
has three learning rates, judged by the validation classes with seed 0, and then three seeds. A run that is there is not
trained again. Two runs train at a time, one thread each; seconds are those of a processor.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import pandas as pd
from safetensors.torch import save_file

from benchmarks.glyphs import glyphs
from benchmarks.table import percent_with_interval, print_machine
from vicinal import Embedder, Table, evaluate, load_table
from vicinal.evaluation import Evaluation, Resampling, compare_models
from vicinal.training import Recipe
from vicinal.utils.run_folder import RunFolder

RECIPES = Path(__file__).parent.parent / "recipes"
SEEDS = (0, 1, 2)
NO_AUGMENTATION = ("--transform.scale=null", "--transform.flip=0.5", "--transform.rotation=0",
                   "--transform.color_jitter=0")  # fmt: skip
"""The defaults of the transform: frozen features are those of the images as in tests, and refuse anything else."""


@dataclass(frozen=True)
class Dataset:
    """What is compared on a dataset, over its recipe.

    Args:
        pretraining: how the stand-in for a pretrained model is trained.
        training: of all methods.
        frozen: of a head on frozen features.
        num_rates: how many of the learning rates of each method are tried.
    """

    pretraining: tuple[str, ...]
    training: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    num_rates: int = 3


DATASETS = {
    "omniglot": Dataset(("--loss=NormSoftmaxLoss", "--batch_size=256", "--samples_per_class=0", "--epochs=5",
                         "--optimizer.lr=0.003", "--model.norm=none", "--validation.patience=null",
                         "--validation.metric=mAP@R")),
    "grocery": Dataset(("--loss=NTXentLoss", "--loss.temperature=0.2", "--batch_size=512", "--samples_per_class=2",
                        "--epochs=30", "--optimizer.lr=0.002", "--model.norm=none", "--model.projector=128",
                        "--transform.scale=[0.15, 1.0]", "--transform.color_jitter=0.4"),
                       training=("--epochs=12",), frozen=("--samples_per_class=0",), num_rates=2),
}  # fmt: skip


@dataclass(frozen=True)
class Method:
    """How a model is trained, and the learning rates that are tried."""

    flags: tuple[str, ...]
    rates: tuple[float, ...]
    is_pretrained: bool = True


METHODS = {
    "random weights": Method((), (0.001, 0.003, 0.006), is_pretrained=False),
    "frozen + head": Method(("--features=frozen", "--batch_size=400", "--epochs=100", *NO_AUGMENTATION),
                            (0.0001, 0.0003, 0.001)),
    "LoRA": Method(("--fine_tuning.method=lora",), (0.001, 0.003, 0.01)),
    "full": Method((), (0.0003, 0.001, 0.003)),
}  # fmt: skip


class Run(NamedTuple):
    """One training run: a method, a learning rate and a seed."""

    method: str
    rate: float
    seed: int

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.method.replace(' + ', '-').replace(' ', '-')}-{self.rate:g}-{self.seed}"


class Comparison:
    """The runs of one dataset in a folder.

    Args:
        dataset: omniglot or grocery.
        root: folder of its files.
        out: folder of the runs.
    """

    def __init__(self, dataset: str, root: str, out: Path) -> None:
        self.dataset, self.root, self.out = dataset, root, out / dataset
        self.settings = DATASETS[dataset]
        self.recipe = RECIPES / f"{dataset}.yaml"
        self.pretraining = RunFolder(self.out / "pretraining")
        self.weights = self.out / "pretrained.safetensors"

    @property
    def words(self) -> list[str]:
        """The flags of the data and of the weights that runs start from."""
        return [self._data, f"--model.pretrained={self.weights}"]

    def settings_of(self, loss: object) -> Mapping[str, object]:
        """The settings that a loss needs: none, since runs are long."""
        return {}

    @property
    def _data(self) -> str:
        return f"--data.root={self.root}"

    @cached_property
    def table(self) -> Table:
        """The images of the dataset."""
        return load_table(self.dataset, root=self.root)

    def pretrain(self) -> None:
        """Train the stand-in for a pretrained model, and write the weights of its backbone."""
        if self.weights.exists():
            return
        source = self.out / "pretraining.csv"
        if not source.exists():
            self.out.mkdir(parents=True, exist_ok=True)
            table = _glyphs() if self.dataset == "omniglot" else _each_twice(self.table.subset("train"))
            table.save(source)
        data = (f"--data.source={source}", "--data.root=null")
        error = _train(self.recipe, self.pretraining.path, [*data, *self.settings.pretraining], threads=2)
        if error:
            raise SystemExit(f"pretraining: {error}")
        backbone = Embedder.from_pretrained(self.pretraining.model).backbone
        save_file({name: tensor.contiguous() for name, tensor in backbone.state_dict().items()}, self.weights)

    def flags(self, run: Run) -> list[str]:
        """Over the recipe."""
        method = METHODS[run.method]
        start = [f"--model.pretrained={self.weights}"] if method.is_pretrained else []
        fixed = [
            self._data,
            f"--seed={run.seed}",
            f"--optimizer.lr={run.rate}",
            "--validation.metric=mAP@R",
        ]
        frozen = [f"--feature_cache={self.out / 'features'}", *self.settings.frozen]
        more = frozen if "--features=frozen" in method.flags else []
        return [*start, *self.settings.training, *method.flags, *fixed, *more, "--accelerator=cpu"]

    def train(self, runs: Sequence[Run]) -> None:
        """Train the missing models, two at a time."""

        def train(run: Run) -> None:
            error = _train(self.recipe, self.out / run.name, self.flags(run), threads=1)
            print(f"{run.name}: {error or 'done'}", file=sys.stderr, flush=True)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(train, runs))

    def rates(self, method: str) -> tuple[float, ...]:
        """The learning rates that are tried."""
        return METHODS[method].rates[: self.settings.num_rates]

    def best_rate(self, method: str) -> float | None:
        """The rate with the best mAP@R on validation classes; None while it is not known."""
        scores = {}
        for rate in self.rates(method):
            config = RunFolder(self.out / Run(method, rate, 0).name).model / "config.json"
            if not config.exists():
                return None
            scores[rate] = json.loads(config.read_text())["metrics"]["val mAP@R"]
        return max(scores, key=lambda rate: scores[rate])

    def runs(self, method: str) -> list[RunFolder]:
        """The finished runs of a method with its best rate, one per seed."""
        rate = self.best_rate(method)
        runs = [] if rate is None else [RunFolder(self.out / Run(method, rate, seed).name) for seed in SEEDS]
        return [run for run in runs if run.model.exists()]

    def print(self) -> None:
        """A table of finished runs: mean over the seeds, intervals over classes, differences to zero-shot, cost."""
        test = self.table.subset("test")
        evaluations, notes = {"zero-shot": _evaluate(self.zero_shot(), test)}, {"zero-shot": "| 0 | 0 | "}
        for method in METHODS:
            runs = self.runs(method)
            if runs:
                found = [_evaluate(Embedder.from_pretrained(run.model), test) for run in runs]
                spread = np.std([each.metrics["mAP@R"] for each in found], ddof=1) if len(found) > 1 else 0.0
                evaluations[method] = mean_evaluation(found)
                seconds, rate = np.median([_seconds(run.path) for run in runs]), self.best_rate(method)
                notes[method] = f"± {100 * spread:.1f} | {seconds:.0f} | {_megabytes(runs[0]):.1f} | {rate:g}"
        results = compare_models(evaluations, test, Resampling())
        print(f"\n{self.dataset}, {len(test):,} test images of {len(test.classes)} unseen classes\n")
        print(
            "| | recall@1 | mAP@R | mAP@R over zero-shot | deviation over seeds | CPU seconds | checkpoint, MB | lr |"
        )
        print("|---" * 8 + "|")
        for name, note in notes.items():
            rows = results.overall(name)
            cells = [percent_with_interval(rows.loc[metric]) for metric in ("recall@1", "mAP@R")]
            cells.append("" if name == "zero-shot" else percent_with_interval(rows.loc["mAP@R"], "difference"))
            print(f"| {name} | {' | '.join(cells)} | {note} |")

    def zero_shot(self, recipe: Path | None = None) -> Embedder:
        """The stand-in for a pretrained model, without training on the dataset; images as in a recipe of its own."""
        flags = [*self.words, "--model.dim=null", "--model.norm=none"]
        return Recipe.load(recipe or self.recipe, flags).create_embedder()


def mean_evaluation(evaluations: Sequence[Evaluation]) -> Evaluation:
    """The scores of every query averaged over runs, so that intervals over classes are those of the mean."""
    first = evaluations[0]
    per_query = {name: np.mean([each.per_query[name] for each in evaluations], axis=0) for name in first.per_query}
    metrics = {name: float(np.nanmean(values)) for name, values in per_query.items()}
    return replace(first, metrics=metrics, per_query=per_query)


def _glyphs() -> Table:
    """About 4,000 characters in several fonts, without Greek."""
    table = glyphs(num_classes=4_500, samples_per_class=15, size=40)
    characters = {code: unicodedata.name(chr(int(code[2:], 16)), "") for code in set(table.frame["coarse"])}
    is_other = ~table.frame["coarse"].map(characters).str.contains("GREEK")
    frame = table.frame[is_other].reset_index(drop=True)
    split = np.where(frame["split"] == "val", "val", "train")
    return Table(frame.assign(split=split))


def _each_twice(table: Table) -> Table:
    """Every image is a class of its own with two rows, which are two crops of it in a batch."""
    paths = pd.Series(table.paths).repeat(2).reset_index(drop=True)
    return Table(pd.DataFrame({"path": paths, "label": np.arange(len(paths)) // 2, "split": "train"}))


def _train(recipe: Path, out: Path, flags: Sequence[str], threads: int) -> str | None:
    """Train or go on, and add the seconds of the processor to a file beside the run; the last line of an error."""
    if RunFolder(out).model.exists():
        return None
    command = [sys.executable, "-m", "vicinal", "train", str(recipe), "--out", str(out), *flags]
    if RunFolder(out).recipe.exists():
        command.append("--resume")
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    lines = process.stderr.read().strip().splitlines()
    _, status, usage = os.wait4(process.pid, 0)
    _seconds_file(out).write_text(str(_seconds(out) + usage.ru_utime + usage.ru_stime))
    return (lines or [f"status {status}"])[-1] if status else None


def _seconds_file(run: Path) -> Path:
    return run.with_name(f"{run.name}.seconds")


def _seconds(run: Path) -> float:
    """Seconds of the processor that a run has taken, over all of its parts."""
    return float(_seconds_file(run).read_text()) if _seconds_file(run).exists() else 0.0


def _megabytes(run: RunFolder) -> float:
    return (run.path / "last.pt").stat().st_size / 1e6


def _evaluate(model: Embedder, table: Table) -> Evaluation:
    return evaluate(model.embed(table, progress=False), table)


def main() -> None:
    """Pretrain, tune, train over seeds, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", choices=["omniglot", "grocery"])
    parser.add_argument("--root", required=True, help="folder that holds the files of the dataset")
    parser.add_argument("--out", required=True, type=Path, help="folder of the runs")
    parser.add_argument("--tables", action="store_true", help="train nothing, print the finished runs")
    arguments = parser.parse_args()
    comparison = Comparison(arguments.dataset, arguments.root, arguments.out)
    if not arguments.tables:
        comparison.pretrain()
        comparison.train([Run(name, rate, 0) for name in METHODS for rate in comparison.rates(name)])
        rates = {name: comparison.best_rate(name) for name in METHODS}
        comparison.train([Run(name, rate, seed) for seed in SEEDS for name, rate in rates.items() if rate is not None])
    print_machine()
    comparison.print()


if __name__ == "__main__":
    main()
