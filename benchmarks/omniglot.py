"""Methods compared on Omniglot's unseen alphabets: mean and spread over seeds, per alphabet and together.

    python -m benchmarks.omniglot --root DATA --out RUNS
    python -m benchmarks.omniglot --root DATA --out RUNS --method ms --method "no miner: --loss.miner=null"

DATA holds Omniglot's zips. A method is a name and settings over recipes/omniglot.yaml. Every run is a folder in RUNS;
a run that is there already is not trained again, and one that was interrupted goes on. `--rerank K` adds a row with
contextual re-ranking of the K nearest.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.table import mean_and_deviation, print_machine
from vicinal import Embedder, Table, evaluate, load_table
from vicinal.data import ImageTransform, read_image
from vicinal.retrieval import ContextualReranking
from vicinal.training import Recipe, resume
from vicinal.utils.run_folder import RunFolder

RECIPE = Path(__file__).parent.parent / "recipes" / "omniglot.yaml"
COLUMNS = ("Greek", "Balinese", "together", "together, mAP@R")
Scores = dict[str, float]


def scores(vectors: npt.NDArray[np.float32], table: Table, rerank: ContextualReranking | None = None) -> Scores:
    """Recall@1 within each alphabet, and within all of them together."""
    alphabets = table.frame["coarse"].to_numpy()
    result = {}
    for alphabet in COLUMNS[:2]:
        rows = np.flatnonzero(alphabets == alphabet)
        result[alphabet] = evaluate(vectors[rows], table.take(rows), rerank=rerank).metrics["recall@1"]
    together = evaluate(vectors, table, rerank=rerank).metrics
    return {**result, "together": together["recall@1"], "together, mAP@R": together["mAP@R"]}


def raw_pixels(table: Table) -> Scores:
    """Cosine similarity of the pictures themselves, ink 1 and paper 0, at 48 px."""
    view = ImageTransform(size=48, resize=48, channels=1, mean=(1.0,), std=(1.0,), interpolation="bilinear").test()
    pictures = [-view(read_image(path, channels=1)).numpy().ravel() for path in table.paths]
    return scores(np.stack(pictures), table)


def untrained(recipe: Recipe, table: Table) -> Scores:
    """The network as training finds it."""
    torch.manual_seed(recipe.settings.seed)
    return scores(recipe.create_embedder().embed(table, progress=False), table)


def print_row(name: str, runs: list[Scores], note: str = "") -> None:
    """Mean and, of several seeds, standard deviation, in percent."""
    cells = [mean_and_deviation([100 * run[column] for run in runs]) for column in COLUMNS]
    print(f"| {name} | {' | '.join(cells)} | {note} |", flush=True)


def main() -> None:
    """Train the missing models, evaluate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="folder that holds Omniglot's zips")
    parser.add_argument("--out", required=True, type=Path, help="folder of the runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--method", action="append", help='"NAME: SETTINGS" over the recipe', metavar="METHOD")
    parser.add_argument("--rerank", type=int, help="also with contextual re-ranking of so many neighbors", metavar="K")
    arguments = parser.parse_args()
    rerank = ContextualReranking(k=arguments.rerank) if arguments.rerank else None
    print_machine()
    print(f"\n| recall@1, % ({len(arguments.seeds)} seeds) | {' | '.join(COLUMNS)} | seconds a run |")
    print("|---" * (len(COLUMNS) + 2) + "|")
    base = [f"--data.root={arguments.root}"]
    recipes = [Recipe.load(RECIPE, [*base, f"--seed={seed}"]) for seed in arguments.seeds]
    table = load_table("omniglot", root=arguments.root).subset("test")
    print_row("raw pixels, 48 px", [raw_pixels(table)])
    print_row("untrained network", [untrained(recipe, table) for recipe in recipes])
    for method in arguments.method or ["multi-similarity:"]:
        name, _, settings = method.partition(":")
        runs, reranked, seconds = [], [], []
        for seed in arguments.seeds:
            run = RunFolder(arguments.out / f"{name.strip().replace(' ', '-')}-{seed}")
            started, done = time.perf_counter(), run.model.exists()
            if not done:
                resume(run.path, Recipe.load(RECIPE, [*base, *settings.split(), f"--seed={seed}"]))
                seconds.append(time.perf_counter() - started)
            vectors = Embedder.from_pretrained(run.model).embed(table, progress=False)
            runs.append(scores(vectors, table))
            if rerank:
                reranked.append(scores(vectors, table, rerank))
        print_row(name, runs, f"{statistics.median(seconds):.0f}" if seconds else "")
        if rerank:
            print_row(f"{name}, re-ranked", reranked)


if __name__ == "__main__":
    main()
