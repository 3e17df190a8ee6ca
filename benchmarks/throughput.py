"""Training images a second of the networks of the recipes, from which `recipes/README.md` estimates their costs.

    python -m benchmarks.throughput                                  # prints a table
    python -m benchmarks.throughput --out recipes/images_per_second.csv
    python -m benchmarks.throughput --network resnet50_in1k 256 --device cuda --batch_size 64

A step is a forward and a backward pass of the backbone with pooling and a linear layer to 512, on random images that
are already on the device; reading images, the loss and the optimizer are not in it. Weights are random.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

from benchmarks.table import print_machine
from vicinal.data import ImageTransform
from vicinal.models import INITIALIZATIONS, Embedder

NETWORKS = {
    ("bn_inception_in1k", 224): 16,
    ("resnet50_in1k", 224): 16,
    ("resnet50_in1k", 256): 16,
    ("resnet101_in1k", 1024): 1,
    ("deit_s16_in1k", 224): 16,
    ("vit_b32_in21k", 224): 16,
    ("vit_b16_in21k", 224): 8,
    ("vit_l16_in21k", 224): 4,
    ("vit_l14_dinov2", 224): 4,
}
"""Backbone and size of the images, and the number of images in a step."""


def rates(name: str, size: int, batch_size: int, device: str, rounds: int) -> list[float]:
    """Images a second of each round, after one that does not count."""
    transform = ImageTransform(size=size)
    network = INITIALIZATIONS[name]
    model = Embedder(network.backbone, pooling=network.pooling, pretrained=False, transform=transform)
    model.to(device)
    images, measured = torch.rand(batch_size, 3, size, size, device=device), []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        model(images).square().sum().backward()
        if device != "cpu":
            torch.cuda.synchronize()
        measured.append(batch_size / (time.perf_counter() - started))
    return measured[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", nargs=2, metavar=("BACKBONE", "SIZE"), help="one network instead of all")
    parser.add_argument("--batch_size", type=int, help="images in a step")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--rounds", type=int, default=5, help="steps that count")
    parser.add_argument("--out", type=Path, help="also write backbone, size and median as CSV")
    given = parser.parse_args()
    networks = {(given.network[0], int(given.network[1])): given.batch_size or 16} if given.network else NETWORKS
    print_machine()
    print("\n| network | pixels | images/s, median | lowest - highest |\n|---|---|---|---|")
    rows = []
    for (name, size), batch_size in networks.items():
        found = rates(name, size, given.batch_size or batch_size, given.device, given.rounds)
        median = statistics.median(found)
        rows.append((name, size, f"{median:.3g}"))
        print(f"| {name} | {size} | {median:.3g} | {min(found):.3g} - {max(found):.3g} |", flush=True)
    if given.out:
        with given.out.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([("backbone", "size", "images_per_second"), *rows])


if __name__ == "__main__":
    main()
