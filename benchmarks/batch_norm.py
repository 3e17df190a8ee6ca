"""Why training with the statistics of batches harms a pretrained network: crops, classes of a batch, or few steps?

    python -m benchmarks.batch_norm --dataset grocery --seeds 0 1 2 --data DATA --out RUNS

Runs start from EfficientNet-Lite0 with the defaults of `vicinal train`. What is scored, on the validation classes, are
the last weights, with the running statistics that training left, and with statistics estimated anew by a pass over
center crops of the training images, and of the validation images. DATA is that of benchmarks/default_settings.py.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch.nn.modules.batchnorm import _BatchNorm

from benchmarks.default_settings import SIZES, prepare, train
from benchmarks.table import print_machine
from vicinal import Embedder, Table, evaluate, load_table
from vicinal.utils.run_folder import RunFolder

TRAINED = ["--model.freeze_batch_norm=none"]
CENTER_CROPS = ["--transform.scale=[1.0, 1.0]", "--transform.ratio=[1.0, 1.0]", "--transform.flip=0"]
NUM_IMAGES, BATCH_SIZE = 1024, 64
VARIANTS: dict[str, list[str]] = {
    "frozen": [],
    "trained": TRAINED,
    "trained, whole images": TRAINED + CENTER_CROPS,
    "trained, 2 images of a class": [*TRAINED, "--samples_per_class=2"],
    "trained, three times the steps": [*TRAINED, "--epochs=12"],
    "frozen, whole images": CENTER_CROPS,
}


def scores(folder: Path, training: Table, validation: Table) -> list[float]:
    """mAP@R with the running statistics of training, and with those of each of the two tables."""
    found = [_score(Embedder.from_pretrained(folder), validation)]
    for table in (training, validation):
        model = Embedder.from_pretrained(folder)
        _estimate(model, table)
        found.append(_score(model, validation))
    return found


def _score(model: Embedder, table: Table) -> float:
    return 100 * evaluate(model.eval().embed(table, progress=False), table).metrics["mAP@R"]


def _estimate(model: Embedder, table: Table) -> None:
    """Set the running statistics of all batch norms to means over images of the table, as tests transform them."""
    transform, rows = model.transform.test(), np.random.default_rng(0).permutation(len(table))[:NUM_IMAGES]
    for module in (norms := [module for module in model.eval().modules() if isinstance(module, _BatchNorm)]):
        module.reset_running_stats()
        module.momentum = None  # a cumulative mean over batches
        module.train()
    with torch.no_grad():
        for batch in np.array_split(rows, NUM_IMAGES // BATCH_SIZE):
            paths = table.take(batch).paths
            model(torch.stack([transform(Image.open(path).convert("RGB")) for path in paths]))
    for module in norms:
        module.eval()


def main() -> None:
    """Train what is missing, and print a row per variant and seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path, help="folder of the archives")
    parser.add_argument("--out", required=True, type=Path, help="folder of the runs")
    parser.add_argument("--dataset", choices=SIZES, default="grocery")
    parser.add_argument("--size", type=int, help="side of the images")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    options = parser.parse_args()
    print_machine()
    table = prepare(options.dataset, options.data, options.out / options.dataset)
    frame = pd.read_csv(table)
    kept = table.with_name("train.csv")  # without a split val, the model of a run is the last one
    frame[frame["split"] == "train"].drop(columns="split").assign(split="train").to_csv(kept, index=False)
    whole = load_table(str(table), root=str(table.parent))
    training, validation = whole.subset("train"), whole.subset("val")
    print("| variant | seed | as trained | statistics of training images | of validation images |", flush=True)
    print("|---|---|---|---|---|", flush=True)
    for seed, (name, flags) in itertools.product(options.seeds, VARIANTS.items()):
        out = table.parent / f"batch-norm-{name.replace(' ', '-').replace(',', '')}-{seed}"
        train(kept, options.size or SIZES[options.dataset], out, flags, seed)
        found = scores(RunFolder(out).model, training, validation)
        print(f"| {name} | {seed} | {' | '.join(f'{score:.1f}' for score in found)} |", flush=True)


if __name__ == "__main__":
    main()
