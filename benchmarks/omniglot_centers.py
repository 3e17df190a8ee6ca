"""Center- and proxy-based losses on Omniglot's unseen alphabets: compared, with label noise, with PRISM, Fig. 5.

    python -m benchmarks.omniglot_centers --root DATA --out RUNS            # everything; goes on where it stopped
    python -m benchmarks.omniglot_centers --root DATA --out RUNS --tables   # prints the finished runs

DATA holds Omniglot's zips. All methods have the batches of recipes/omniglot.yaml, 20 classes with 4 images each, and
the same tuning: three learning rates, seed 0, judged by recall@1 + mAP@R on the validation alphabet. Then, in this
order: the comparison over seeds, long-tail and symmetric noise with and without PRISM for one seed, embedding sizes,
the grid of lambda and margin, and noise for the other seeds. A run that is there is not trained again. Two runs train
at a time, one thread each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from benchmarks.omniglot import COLUMNS, RECIPE, Scores, print_row, scores
from benchmarks.table import print_machine
from vicinal import Embedder, load_table
from vicinal.training import Recipe, resume
from vicinal.utils.run_folder import RunFolder

RATES = (0.0015, 0.003, 0.006)
METHODS: dict[str, list[str]] = {
    "NormSoftmax": ["--loss=NormSoftmaxLoss"],
    "CosFace": ["--loss=CosFaceLoss", "--loss.scale=20", "--loss.margin=0.1"],
    "ProxyNCA++": ["--loss=ProxyNCAPlusPlusLoss"],
    "ProxyAnchor": ["--loss=ProxyAnchorLoss"],
    "SoftTriple": ["--loss=SoftTripleLoss", "--loss.centers_per_class=2"],
    "multi-similarity + miner": [],
    "CCL, m = 0": ["--loss=CenterContrastiveLoss"],
    "CCL, m = 0.1": ["--loss=CenterContrastiveLoss", "--loss.margin=0.1"],
    "CCL, gradient stopped": ["--loss=CenterContrastiveLoss", "--loss.stop_gradient=true"],
    "contrastive": ["--loss=ContrastiveLoss"],
    "CCL, m = 0, lambda = 2": ["--loss=CenterContrastiveLoss", "--loss.center_weight=2"],
}
COMPARED = list(METHODS)[:9]
UNDER_NOISE = ["NormSoftmax", "contrastive", "multi-similarity + miner", "CCL, m = 0, lambda = 2"]
NOISES = {
    "50 % long-tail": (["--data.noise.open_set_labels=0.5"], 0.5),
    "20 % symmetric": (["--data.noise.random_labels=0.2"], 0.2),
}


class Run(NamedTuple):
    """One training run: a method with more settings, a learning rate and a seed."""

    method: str
    rate: float
    seed: int
    variant: str = ""
    more: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Of its folder."""
        words = f"{self.method} {self.variant} {self.rate:g} {self.seed}"
        return "-".join("".join(c if c.isalnum() or c in ".+" else " " for c in words).split())

    def settings(self, root: str) -> list[str]:
        """Over the recipe."""
        fixed = [f"--data.root={root}", f"--seed={self.seed}", f"--optimizer.lr={self.rate}", "--accelerator=cpu"]
        return [*METHODS[self.method], *self.more, *fixed]


def validation(out: Path, run: Run) -> float | None:
    """What tuning judges by; None while the run is not done."""
    config = RunFolder(out / run.name).model / "config.json"
    if not config.exists():
        return None
    metrics = json.loads(config.read_text())["metrics"]
    return metrics["val recall@1"] + metrics["val mAP@R"]


def best_rate(out: Path, method: str) -> float | None:
    """The learning rate that tuning found; None while it goes on."""
    found = {rate: validation(out, Run(method, rate, 0)) for rate in RATES}
    if None in found.values():
        return None
    return max(found, key=lambda rate: found[rate] or 0.0)


def compared(rate: float, method: str, seeds: Iterable[int]) -> list[Run]:
    return [Run(method, rate, seed) for seed in seeds]


def under_noise(rate: float, method: str, noise: str, filtered: bool, seeds: Iterable[int]) -> list[Run]:
    settings, fraction = NOISES[noise]
    prism = (
        [
            "--sample_selection.method=prism",
            f"--sample_selection.noise_rate={fraction}",
            "--sample_selection.warmup_epochs=5",
        ]
        if filtered
        else []
    )
    variant = f"{noise} PRISM" if filtered else noise
    return [Run(method, rate, seed, variant, (*settings, *prism)) for seed in seeds]


def of_grid(rate: float, weight: float, margin: float) -> Run:
    if (weight, margin) == (1.0, 0.0):
        return Run("CCL, m = 0", rate, 0)
    more = (f"--loss.center_weight={weight}", f"--loss.margin={margin}")
    return Run("CCL, m = 0", rate, 0, f"lambda {weight} margin {margin}", more)


def of_size(rate: float, dim: int) -> Run:
    return Run("CCL, m = 0.1", rate, 0, f"dim {dim}", (f"--model.dim={dim}",))


GRID = [(weight, margin) for weight in (0.0, 1.0, 2.0) for margin in (0.0, 0.1, 0.2)]
SIZES = (32, 128)


def after_tuning(rates: dict[str, float], seeds: list[int]) -> list[Run]:
    """All runs but those of tuning, in the order in which they are wanted."""
    runs = [run for seed in seeds for name in COMPARED for run in compared(rates[name], name, [seed])]
    runs += all_noise(rates, seeds[:1])
    runs += [of_size(rates["CCL, m = 0.1"], dim) for dim in SIZES]
    runs += [of_grid(rates["CCL, m = 0"], *place) for place in GRID]
    return runs + [run for seed in seeds[1:] for run in all_noise(rates, [seed])]


def all_noise(rates: dict[str, float], seeds: Iterable[int]) -> list[Run]:
    return [
        run
        for noise in NOISES
        for name in UNDER_NOISE
        for filtered in (False, True)
        for run in under_noise(rates[name], name, noise, filtered, seeds)
    ]


def train_all(root: str, out: Path, runs: list[Run]) -> None:
    """Train the missing models, two at a time, each in a process of its own."""

    def train(run: Run) -> None:
        if RunFolder(out / run.name).model.exists():
            return
        started = time.monotonic()
        command = [sys.executable, "-m", "benchmarks.omniglot_centers", "--root", root, "--out", str(out)]
        result = subprocess.run([*command, "--train", json.dumps(run)], capture_output=True, text=True, check=False)
        last = result.stderr.strip().splitlines()[-1:] if result.returncode else []
        print(f"{run.name}: {time.monotonic() - started:.0f} s", *last, file=sys.stderr, flush=True)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(train, runs))


class Tables:
    """The scores of finished runs on the unseen alphabets, and tables of them."""

    def __init__(self, root: str, out: Path) -> None:
        self.out = out
        self.table = load_table("omniglot", root=root).subset("test")

    def scores(self, runs: Iterable[Run]) -> list[Scores]:
        """Of the runs that are done; found once and kept beside each."""
        return [self._of(RunFolder(self.out / run.name)) for run in runs if (self.out / run.name / "model").exists()]

    def _of(self, run: RunFolder) -> Scores:
        path = run.path / "test.json"
        if not path.exists():
            vectors = Embedder.from_pretrained(run.model).embed(self.table, progress=False)
            path.write_text(json.dumps(scores(vectors, self.table)))
        return json.loads(path.read_text())

    def print(self, title: str, rows: dict[str, list[Run]]) -> None:
        """A table of the finished runs."""
        print(f"\n{title}\n\n| recall@1, % | {' | '.join(COLUMNS)} | runs |\n{'|---' * (len(COLUMNS) + 2)}|")
        for name, runs in rows.items():
            done = self.scores(runs)
            if done:
                print_row(name, done, f"{len(done)}")


def print_tables(root: str, out: Path, rates: dict[str, float], seeds: list[int]) -> None:
    """Everything that is done so far."""
    tables = Tables(root, out)
    tables.print(
        "Clean labels", {f"{m}, lr {rates[m]:g}": compared(rates[m], m, seeds) for m in COMPARED if m in rates}
    )
    for noise in NOISES:
        rows = {
            f"{m}{', PRISM' if filtered else ''}": under_noise(rates[m], m, noise, filtered, seeds)
            for m in UNDER_NOISE
            if m in rates
            for filtered in (False, True)
        }
        tables.print(f"{noise} noise", rows)
    if {"CCL, m = 0", "CCL, m = 0.1"} <= set(rates):
        grid = {f"lambda {w:g}, m {m:g}": [of_grid(rates["CCL, m = 0"], w, m)] for w, m in GRID}
        tables.print("CCL, one seed: lambda and margin", grid)
        sizes = {f"dimension {dim}": [of_size(rates["CCL, m = 0.1"], dim)] for dim in SIZES}
        sizes["dimension 512"] = compared(rates["CCL, m = 0.1"], "CCL, m = 0.1", [0])
        tables.print("CCL, one seed: size of the embeddings", sizes)


def main() -> None:
    """Tune, train, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="folder that holds Omniglot's zips")
    parser.add_argument("--out", required=True, type=Path, help="folder of the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tables", action="store_true", help="print the finished runs and train nothing")
    parser.add_argument("--train", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    root, out, seeds = arguments.root, arguments.out, arguments.seeds
    if arguments.train:
        torch.set_num_threads(1)
        run = Run(*json.loads(arguments.train))
        resume(out / run.name, Recipe.load(RECIPE, run.settings(root)))
        return
    if not arguments.tables:
        train_all(root, out, [Run(method, rate, 0) for method in METHODS for rate in RATES])
    rates = {method: rate for method in METHODS if (rate := best_rate(out, method)) is not None}
    if not arguments.tables:
        if missing := [method for method in METHODS if method not in rates]:
            sys.exit(f"tuning failed for {', '.join(missing)}; see above, and start again")
        train_all(root, out, after_tuning(rates, seeds))
    print_machine()
    print_tables(root, out, rates, seeds)


if __name__ == "__main__":
    main()
