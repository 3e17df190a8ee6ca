"""Center- and proxy-based losses, forward and backward: time and memory beside pytorch-metric-learning and the floor.

    python -m benchmarks.centers
    python -m benchmarks.centers --classes 1000 11318 --batch_size 128 --rounds 7

The floor is what no loss of all centers can do without: normalize embeddings and centers, multiply all with all, and
the backward pass to both. Competitors take turns in one process; memory is that of a process of its own, beyond
embeddings, centers and their gradients. What would take more than `--memory` GB is left out.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Callable

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.peer import losses as peers
from benchmarks.table import peak_extra_megabytes, print_machine, take_turns
from vicinal import losses

DIM = 512
Step = Callable[[], object]


class Floor(nn.Module):
    """Normalize, multiply, and back from a gradient of the product that costs nothing."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.centers = nn.Parameter(torch.randn(classes, DIM))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.normalize(x) @ F.normalize(self.centers).T


OURS: dict[str, Callable[[int], nn.Module]] = {
    "NormSoftmax": lambda classes: losses.NormSoftmaxLoss(classes, DIM),
    "CosFace": lambda classes: losses.CosFaceLoss(classes, DIM),
    "ArcFace": lambda classes: losses.ArcFaceLoss(classes, DIM),
    "CCL": lambda classes: losses.CenterContrastiveLoss(classes, DIM, margin=0.1),
    "ProxyNCA": lambda classes: losses.ProxyNCALoss(classes, DIM),
    "ProxyAnchor": lambda classes: losses.ProxyAnchorLoss(classes, DIM),
    "SoftTriple, 2 centers": lambda classes: losses.SoftTripleLoss(classes, DIM, centers_per_class=2, regularizer=0),
    "NormSoftmax, a tenth of the classes": lambda classes: losses.NormSoftmaxLoss(classes, DIM, sample_rate=0.1),
}
PEERS: dict[str, Callable[[int], nn.Module]] = {
    "NormSoftmax": lambda classes: peers.NormalizedSoftmaxLoss(classes, DIM),
    "CosFace": lambda classes: peers.CosFaceLoss(classes, DIM),
    "ArcFace": lambda classes: peers.ArcFaceLoss(classes, DIM),
    "ProxyNCA": lambda classes: peers.ProxyNCALoss(classes, DIM),
    "ProxyAnchor": lambda classes: peers.ProxyAnchorLoss(classes, DIM),
    "SoftTriple, 2 centers": lambda classes: peers.SoftTripleLoss(classes, DIM, centers_per_class=2),
}
# How many matrices [batch, classes] a competitor holds at its peak, roughly: only to leave out what cannot run.
MATRICES = {"floor": 3, "peer": 8, "ours": 0}


def made(who: str, name: str, classes: int) -> nn.Module:
    """A competitor with its centers."""
    torch.manual_seed(0)
    return Floor(classes) if who == "floor" else (OURS if who == "ours" else PEERS)[name](classes)


def step_of(module: nn.Module, batch_size: int, classes: int) -> Step:
    """Forward and backward; the gradients are made anew each time."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batch_size, DIM, generator=generator, requires_grad=True)
    labels = torch.randint(0, classes, (batch_size,), generator=generator)

    def step() -> None:
        module.zero_grad()
        x.grad = None
        value = module(x, labels)
        value.backward(value.detach())  # of the floor a matrix

    return step


def gigabytes(who: str, batch_size: int, classes: int) -> float:
    """Roughly what a competitor takes."""
    centers = {"floor": 4, "peer": 5, "ours": 2}[who] * classes * DIM
    return 4e-9 * (centers + MATRICES[who] * batch_size * classes)


def megabytes(who: str, name: str, batch_size: int, classes: int) -> float:
    """Peak memory of a step in a process of its own, beyond the gradients of embeddings and centers."""
    command = [sys.executable, "-m", "benchmarks.centers", "--measure", who, name, str(batch_size), str(classes)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(who: str, name: str, batch_size: int, classes: int) -> None:
    """Print what :func:`megabytes` reads."""
    module = made(who, name, classes)
    step_of(made(who, name, 100), batch_size, 100)()  # modules loaded by the first use are not counted
    peak = peak_extra_megabytes(step_of(module, batch_size, classes))
    print(peak - 4e-6 * (sum(p.numel() for p in module.parameters()) + batch_size * DIM))


def print_size(batch_size: int, classes: int, names: list[str], rounds: int, most: float) -> None:
    """The table of one size, line by line."""
    print(f"\n### {classes:,} classes, batch {batch_size:,}\n")
    columns = ("", "ms", "spread", "time / floor", "time / peer", "MB beyond the gradients", "peer's MB")
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    fits = {who: gigabytes(who, batch_size, classes) <= most for who in MATRICES}
    for i, name in enumerate(names):
        who = [w for w in ("floor", "ours", "peer") if fits[w] and (w != "peer" or name in PEERS)]
        modules = {w: made(w, name, classes) for w in who}
        seconds = take_turns({w: step_of(modules[w], batch_size, classes) for w in who}, rounds)
        del modules
        if i == 0 and fits["floor"]:
            print(_line("floor", seconds["floor"], {}, megabytes("floor", name, batch_size, classes), None))
        of_peer = megabytes("peer", name, batch_size, classes) if "peer" in who else None
        others = {w: seconds[w] for w in who if w != "ours"}
        print(_line(name, seconds["ours"], others, megabytes("ours", name, batch_size, classes), of_peer), flush=True)


def _line(name: str, own: list[float], others: dict[str, list[float]], mb: float, of_peer: float | None) -> str:
    def ratio(who: str) -> str:
        if who not in others:
            return ""
        return f"{statistics.median(a / b for a, b in zip(own, others[who], strict=True)):.2f}"

    times = sorted(1000 * value for value in own)
    spread = f"{times[0]:.0f} - {times[-1]:.0f}"
    peer = "" if of_peer is None else f"{of_peer:.0f}"
    cells = (name, f"{statistics.median(times):.0f}", spread, ratio("floor"), ratio("peer"), f"{mb:.0f}", peer)
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """All sizes, or one measurement of memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch_size", type=int, nargs="+", default=[128, 4096])
    parser.add_argument("--classes", type=int, nargs="+", default=[1_000, 11_318, 100_000, 1_000_000])
    parser.add_argument("--loss", nargs="+", default=list(OURS), choices=list(OURS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--memory", type=float, default=16.0, help="GB")
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.measure:
        who, name, batch, classes = arguments.measure
        return measure(who, name, int(batch), int(classes))
    print_machine()
    for batch in arguments.batch_size:
        for classes in arguments.classes:
            print_size(batch, classes, arguments.loss, arguments.rounds, arguments.memory)
    return None


if __name__ == "__main__":
    main()
