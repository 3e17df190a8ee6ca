"""The contextual loss against its definition by whole matrices, on embeddings of Omniglot as training goes on.

    python -m benchmarks.contextual --root DATA --out RUNS

DATA holds Omniglot's zips. RUNS gets two runs of recipes/omniglot.yaml, of a tenth of its epochs and of all, with the
whole loss of Eq. (6), if they are not there yet. Classes are characters in four rotations, as they are and mirrored, as
they are and flattened, of four drawers each: 2,928 classes, of which n / 4 are drawn. Definition, ours and the floor
(normalize, multiply all embeddings with all, and back) take turns; the definition is Algorithm 1 of the paper with
autograd, and is left out at sizes after one where it took longer than `--patience` seconds. `--cpu` seconds are those
of the processor, which other programs change less.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor

from benchmarks.formulas import contextual as definition
from benchmarks.omniglot import RECIPE
from benchmarks.steps import SAMPLES_PER_CLASS, floor, print_times, step_of
from benchmarks.table import peak_extra_megabytes, print_machine, take_turns
from vicinal import Embedder, load_table
from vicinal.data import read_image
from vicinal.losses import ContextualLoss
from vicinal.training import Recipe, resume
from vicinal.utils.run_folder import RunFolder

LOSS = """[
    {class_path: ContextualLoss},
    {class_path: ContrastiveLoss, init_args: {positive_margin: 0.75}},
    {class_path: SimilarityRegularizer}]"""
STAGES = {"untrained": 0.0, "half-trained": 0.1, "trained": 1.0}
WHO = ["floor", "ours", "peer"]


def step(who: str) -> Callable[[Tensor, Tensor], object]:
    return floor if who == "floor" else step_of(definition if who == "peer" else ContextualLoss())


def embeddings_of(stage: str, root: str, out: Path) -> Path:
    """A file of embeddings [2928 * 4, 512], class by class; made if it is not there."""
    path = out / f"{stage}.npy"
    if not path.exists():
        model = _model(stage, root, out)
        pictures = [version for path in _drawings(root) for version in _versions(read_image(path, channels=1))]
        # Versions of one drawing are of different classes: group drawings of the same character and version.
        places = np.arange(len(pictures)).reshape(-1, SAMPLES_PER_CLASS, 16).swapaxes(1, 2).ravel()
        out.mkdir(parents=True, exist_ok=True)
        np.save(path, model.embed([pictures[place] for place in places], progress=False))
    return path


def _model(stage: str, root: str, out: Path) -> Embedder:
    settings = [f"--data.root={root}"]
    if stage == "untrained":
        torch.manual_seed(0)
        return Recipe.load(RECIPE, settings).create_embedder()
    recipe = Recipe.load(RECIPE, settings)
    assert recipe.settings.epochs is not None
    epochs = round(STAGES[stage] * recipe.settings.epochs)
    run = RunFolder(out / stage)
    if not run.model.exists():
        loss = ["--loss=WeightedSum", f"--loss.losses={' '.join(LOSS.split())}", "--loss.weights=[0.8, 0.2, 0.1]"]
        resume(run.path, Recipe.load(RECIPE, [*settings, *loss, f"--epochs={epochs}"]))
    return Embedder.from_pretrained(run.model)


def _drawings(root: str) -> list[str]:
    """Four drawings of each character of Omniglot."""
    frame = load_table("omniglot", root=root).frame
    return (
        frame.groupby("label", sort=True).head(SAMPLES_PER_CLASS).sort_values("label", kind="stable")["path"].tolist()
    )


def _versions(image: Image.Image) -> list[Image.Image]:
    """Sixteen that look like other characters."""
    size = image.size
    flat = image.resize((size[0], size[1] // 2)).resize(size)
    shapes = [image, ImageOps.mirror(image), flat, ImageOps.mirror(flat)]
    return [shape.rotate(angle) for shape in shapes for angle in (0, 90, 180, 270)]


def batch(path: Path, n: int) -> tuple[Tensor, Tensor]:
    """N / 4 classes of a file of embeddings, in random order, and their labels."""
    rng = np.random.default_rng(0)
    vectors = np.load(path)
    classes = rng.permutation(len(vectors) // SAMPLES_PER_CLASS)[: n // SAMPLES_PER_CLASS]
    rows = rng.permutation((classes[:, None] * SAMPLES_PER_CLASS + np.arange(SAMPLES_PER_CLASS)).ravel())
    return torch.from_numpy(vectors[rows]).requires_grad_(), torch.from_numpy(rows // SAMPLES_PER_CLASS)


def neighbors(x: Tensor) -> float:
    """How many neighbors a sample has in the mean, itself included."""
    f = F.normalize(x.detach())
    tiles = (f[start : start + 512] @ f.T for start in range(0, len(f), 512))
    return sum(int((tile >= tile.topk(4).values[:, 3:] - 0.025).sum()) for tile in tiles) / len(f)


def main() -> None:
    """Train the missing models, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="folder that holds Omniglot's zips")
    parser.add_argument("--out", required=True, type=Path, help="folder of the runs and embeddings")
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 256, 512, 1024, 2048, 4096, 8192])
    parser.add_argument("--stages", nargs="+", choices=list(STAGES), default=list(STAGES))
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--patience", type=float, default=20.0, help="seconds")
    parser.add_argument("--cpu", action="store_true", help="CPU time in place of the time that passes")
    parser.add_argument("--no-memory", action="store_true", help="leave memory out")
    parser.add_argument("--measure-memory", nargs=3, metavar=("STAGE", "WHO", "N"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure_memory:
        stage, who, n = arguments.measure_memory
        _measure_memory(embeddings_of(stage, arguments.root, arguments.out), who, int(n))
        return
    files = {stage: embeddings_of(stage, arguments.root, arguments.out) for stage in arguments.stages}
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        print_machine()
        for stage, path in files.items():
            _print_stage(stage, path, threads, arguments)


def _print_stage(stage: str, path: Path, threads: int, arguments: argparse.Namespace) -> None:
    who = list(WHO)
    for n in sorted(arguments.sizes):
        x, labels = batch(path, n)
        clock = time.process_time if arguments.cpu else time.perf_counter
        seconds = take_turns({name: partial(step(name), x, labels) for name in who}, arguments.rounds, clock)
        keys = {"floor": ("floor", "ours"), "ours": (stage, "ours"), "peer": (stage, "peer")}
        print_times(n, threads, {keys[name]: values for name, values in seconds.items()})
        print(f"\n{neighbors(x):.0f} neighbors a sample", end="")
        if not arguments.no_memory:
            megabytes = (f"{name} {_megabytes(stage, name, n, arguments)}" for name in who)
            print(f"; peak extra MB, one thread: {', '.join(megabytes)}", end="")
        print(flush=True)
        if max(seconds.get("peer", [0.0])) > arguments.patience:
            who.remove("peer")


def _megabytes(stage: str, who: str, n: int, arguments: argparse.Namespace) -> int:
    """Of a process of its own, one thread."""
    command = [sys.executable, "-m", "benchmarks.contextual", f"--root={arguments.root}", f"--out={arguments.out}"]
    result = subprocess.run(
        [*command, "--measure-memory", stage, who, str(n)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent.parent,
        check=True,
    )
    return round(float(result.stdout))


def _measure_memory(path: Path, who: str, n: int) -> None:
    torch.set_num_threads(1)
    step(who)(*batch(path, 512))  # one-time set-up is not part of the step
    x, labels = batch(path, n)
    print(peak_extra_megabytes(lambda: step(who)(x, labels)))


if __name__ == "__main__":
    main()
