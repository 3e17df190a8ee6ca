"""Why training with the statistics of batches harms a pretrained network: crops, classes of a batch, or few steps?

    python -m benchmarks.batch_norm --dataset grocery --seeds 0 1 2 --data DATA --out RUNS

Runs start from EfficientNet-Lite0 with the defaults of `vicinal train`. The untrained network and the last weights of
each run are scored on the validation classes, with their own running statistics, and with statistics estimated anew by
a pass over center crops of the training images, and of the validation images. DATA is that of
benchmarks/default_settings.py.

`--stand_in resnet18` asks the same of a network whose ImageNet weights are not at hand: it is first trained from random
weights on the training classes of Emoji.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch.nn.modules.batchnorm import _BatchNorm

from benchmarks.default_settings import SIZES, prepare, train
from benchmarks.table import print_machine
from vicinal import Embedder, Table, evaluate, load_table
from vicinal.data.images.transforms import ImageTransform
from vicinal.utils.run_folder import RunFolder

TRAINED = ["--model.freeze_batch_norm=none"]
CENTER_CROPS = ["--transform.scale=[1.0, 1.0]", "--transform.ratio=[1.0, 1.0]", "--transform.flip=0"]
FROM_SCRATCH = ["--model.pretrained=false", "--epochs=30", "--optimizer.lr=0.002", "--loss=NormSoftmaxLoss"]
PIXELS = ["--transform.mean=[0.5, 0.5, 0.5]", "--transform.std=[0.5, 0.5, 0.5]"]
NUM_IMAGES, BATCH_SIZE = 1024, 64
VARIANTS: dict[str, list[str]] = {
    "frozen": [],
    "trained": TRAINED,
    "trained, whole images": TRAINED + CENTER_CROPS,
    "trained, 2 images of a class": [*TRAINED, "--samples_per_class=2"],
    "trained, three times the steps": [*TRAINED, "--epochs=12"],
    "frozen, whole images": CENTER_CROPS,
}


def scores(make: Callable[[], Embedder], training: Table, validation: Table) -> list[float]:
    """mAP@R of a model with its own running statistics, and with those of each of the two tables."""
    found = [_score(make(), validation)]
    for table in (training, validation):
        model = make()
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


def stand_in(options: argparse.Namespace, size: int) -> Path:
    """Train a network from random weights on Emoji, unless that was done, and return the file of its weights."""
    emoji = pd.read_csv(prepare("emoji", options.data, options.out / "emoji"))
    table = options.out / "emoji" / "stand-in.csv"
    emoji[emoji["split"] == "train"].to_csv(table, index=False)
    out = options.out / "emoji" / f"{options.stand_in}-{size}"
    train(table, size, out, [f"--model.backbone={options.stand_in}", *PIXELS, *FROM_SCRATCH], seed=0)
    return RunFolder(out).model / "model.safetensors"


def main() -> None:
    """Train the missing models, and print a row per variant and seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path, help="folder of the archives")
    parser.add_argument("--out", required=True, type=Path, help="folder of the runs")
    parser.add_argument("--dataset", choices=SIZES, default="grocery")
    parser.add_argument("--size", type=int, help="side of the images")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--stand_in", metavar="BACKBONE", help="a network that is first trained on Emoji from scratch")
    options = parser.parse_args()
    print_machine()
    table = prepare(options.dataset, options.data, options.out / options.dataset)
    frame = pd.read_csv(table)
    kept = table.with_name("train.csv")  # without a split val, the model of a run is the last one
    frame[frame["split"] == "train"].to_csv(kept, index=False)
    whole = load_table(str(table), root=str(table.parent))
    training, validation = whole.subset("train"), whole.subset("val")
    print("| variant | seed | own statistics | those of training images | of validation images |", flush=True)
    print("|---|---|---|---|---|", flush=True)
    size = options.size or SIZES[options.dataset]
    transform = ImageTransform(size=size, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    backbone = options.stand_in or "efficientnet_lite0"
    pretrained = stand_in(options, size) if options.stand_in else True
    untrained = partial(Embedder, backbone, pretrained=pretrained, dim=None, norm="none", transform=transform)
    _print_row("untrained", "", scores(untrained, training, validation))
    network = [f"--model.backbone={backbone}", *PIXELS] + [f"--model.pretrained={pretrained}"] * bool(options.stand_in)
    for seed, name in itertools.product(options.seeds, options.variants):
        out = table.parent / f"batch-norm-{backbone}-{name.replace(' ', '-').replace(',', '')}-{seed}"
        train(kept, size, out, [*network, *VARIANTS[name]], seed)
        trained = partial(Embedder.from_pretrained, RunFolder(out).model)
        _print_row(name, seed, scores(trained, training, validation))


def _print_row(name: str, seed: int | str, found: list[float]) -> None:
    print(f"| {name} | {seed} | {' | '.join(f'{score:.1f}' for score in found)} |", flush=True)


if __name__ == "__main__":
    main()
