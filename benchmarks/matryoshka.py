"""Matryoshka, forward and backward, against one loss of the whole embeddings and against separate losses of prefixes.

    python -m benchmarks.matryoshka [--threads 1] [--device cuda] [--sizes 128 512 2048]

Embeddings of 256 dimensions, 4 per class, in random order; prefixes of 32, 64, 128 and 256 dimensions. "separate" calls
four losses, on what each cuts from the embeddings. Competitors take turns.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from torch import Tensor

from benchmarks.table import print_machine, print_table, take_turns
from vicinal.losses import Loss, MultiSimilarityLoss, NormSoftmaxLoss, RecallAtKLoss, TripletLoss
from vicinal.matryoshka import Matryoshka

DIM, DIMS = 256, (32, 64, 128, 256)
LOSSES: dict[str, Callable[[int], Loss]] = {
    "MultiSimilarityLoss": lambda classes: MultiSimilarityLoss(),
    "TripletLoss": lambda classes: TripletLoss(),
    "RecallAtKLoss": lambda classes: RecallAtKLoss(),
    "NormSoftmaxLoss": lambda classes: NormSoftmaxLoss(classes, DIM),
}


def step(loss: Callable[[Tensor, Tensor], Tensor], x: Tensor, labels: Tensor) -> Callable[[], None]:
    """A forward and a backward pass."""

    def run() -> None:
        leaf = x.clone().requires_grad_()
        torch.autograd.backward(loss(leaf, labels))
        if x.is_cuda:
            torch.cuda.synchronize()

    return run


def separate(make: Callable[[int], Loss], classes: int, device: str) -> Callable[[Tensor, Tensor], Tensor]:
    """The sum of one loss per prefix."""
    losses = [make(classes).to(device) for _ in DIMS]
    for loss, dim in zip(losses, DIMS, strict=True):
        if isinstance(loss, NormSoftmaxLoss):
            loss.dim = None
            loss.create_centers(classes, dim)
            loss.to(device)
    return lambda x, labels: torch.stack([loss(x[:, :d], labels) for d, loss in zip(DIMS, losses, strict=True)]).sum()


def main() -> None:
    """Time, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 512, 2048])
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print_machine()
    for name, make in LOSSES.items():
        for n in arguments.sizes:
            torch.manual_seed(0)
            x = torch.randn(n, DIM, device=arguments.device)
            labels = (torch.randperm(n) // 4).to(arguments.device)
            classes = -(-n // 4)
            competitors: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
                "one loss": make(classes).to(arguments.device),
                "Matryoshka": Matryoshka(make(classes), DIMS).to(arguments.device),
                "separate": separate(make, classes, arguments.device),
            }
            runs = {key: step(loss, x, labels) for key, loss in competitors.items()}
            print_table(f"{name}, {n} embeddings", take_turns(runs, arguments.rounds), n, "embeddings", "one loss")


if __name__ == "__main__":
    main()
