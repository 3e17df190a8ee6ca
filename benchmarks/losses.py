"""Speed and memory of the pair losses, forward and backward, beside the floor and beside pytorch-metric-learning.

    python -m benchmarks.losses                                  # everything; hours
    python -m benchmarks.losses --sizes 128 512 --threads 1      # less

The floor is what no loss of all pairs can do without: normalise, multiply all embeddings with all, and back. Floor,
ours, the peer, and ours under torch.compile take turns in one process; memory is that of a process of its own. Whoever
needs longer than `--patience` seconds at a size is left out at larger ones, and so is whoever runs out of memory.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from pytorch_metric_learning import distances as pml_distances
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning import miners as pml_miners
from torch import Tensor

from benchmarks.table import print_machine
from vicinal import losses, mining

DIM, PER_CLASS = 512, 4
LossFunction = Callable[[Tensor, Tensor], Tensor]

OURS: dict[str, Callable[[], LossFunction]] = {
    "multi-similarity + miner": losses.MultiSimilarityLoss,
    "multi-similarity": partial(losses.MultiSimilarityLoss, miner=None),
    "contrastive": losses.ContrastiveLoss,
    "NT-Xent": losses.NTXentLoss,
    "SupCon": losses.SupConLoss,
    "NCA": losses.NCALoss,
    "N-pairs": losses.NPairsLoss,
    "lifted structure": losses.LiftedStructureLoss,
    "lifted structure *": losses.LiftedStructureStarLoss,
    "binomial deviance": losses.BinomialDevianceLoss,
    "BinLifted": losses.BinLiftedLoss,
    "circle": losses.CircleLoss,
    "triplet, all": losses.TripletLoss,
    "triplet, semi-hard": partial(losses.TripletLoss, triplets="semi-hard"),
    "triplet, batch hard": partial(losses.TripletLoss, miner=mining.HardestMiner()),
    "margin, distance-weighted": losses.MarginLoss,
    "histogram": losses.HistogramLoss,
}


def _mined(loss: Callable[..., Tensor], miner: Callable[..., object]) -> LossFunction:
    return lambda x, labels: loss(x, labels, miner(x, labels))


def _cosine() -> pml_distances.CosineSimilarity:
    return pml_distances.CosineSimilarity()


PEERS: dict[str, Callable[[], LossFunction]] = {
    "multi-similarity + miner": lambda: _mined(
        pml_losses.MultiSimilarityLoss(alpha=2, beta=50, base=1), pml_miners.MultiSimilarityMiner(epsilon=0.1)
    ),
    "multi-similarity": lambda: pml_losses.MultiSimilarityLoss(alpha=2, beta=50, base=1),
    "contrastive": lambda: pml_losses.ContrastiveLoss(pos_margin=0.9, neg_margin=0.6, distance=_cosine()),
    "NT-Xent": lambda: pml_losses.NTXentLoss(temperature=0.1),
    "SupCon": lambda: pml_losses.SupConLoss(temperature=0.1),
    "NCA": lambda: pml_losses.NCALoss(),
    "N-pairs": lambda: pml_losses.NPairsLoss(),
    "lifted structure": lambda: pml_losses.GeneralizedLiftedStructureLoss(),
    "circle": lambda: pml_losses.CircleLoss(m=0.4, gamma=80),
    "triplet, all": lambda: pml_losses.TripletMarginLoss(margin=0.1, distance=_cosine()),
    "triplet, semi-hard": lambda: _mined(
        pml_losses.TripletMarginLoss(margin=0.1, distance=_cosine()),
        pml_miners.TripletMarginMiner(margin=0.1, type_of_triplets="semihard", distance=_cosine()),
    ),
    "triplet, batch hard": lambda: _mined(
        pml_losses.TripletMarginLoss(margin=0.1, distance=_cosine()), pml_miners.BatchHardMiner(distance=_cosine())
    ),
    "margin, distance-weighted": lambda: _mined(
        pml_losses.MarginLoss(learn_beta=True), pml_miners.DistanceWeightedMiner()
    ),
    "histogram": lambda: pml_losses.HistogramLoss(n_bins=100),
}
"""N-pairs does less there: one pair a class, where ours takes all. The others have our formulas, up to constants."""


def batch(n: int) -> tuple[Tensor, Tensor]:
    """Clustered embeddings [n, 512], some classes near others, in random order; and their labels."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) // PER_CLASS
    centers = torch.randn(n // PER_CLASS, DIM, generator=generator)
    x = centers[labels] + 1.5 * torch.randn(n, DIM, generator=generator)
    order = torch.randperm(n, generator=generator)
    return x[order].requires_grad_(), labels[order]


def step_of(loss: LossFunction | None) -> Callable[[Tensor, Tensor], object]:
    """One forward and backward pass; of the floor where there is no loss."""
    if loss is None:
        return floor
    return lambda x, labels: torch.autograd.grad(loss(x, labels), x)


def floor(x: Tensor, _: Tensor) -> object:
    similarity = (normalized := F.normalize(x)) @ normalized.T
    return torch.autograd.grad(similarity, x, similarity.detach())


class Competitors:
    """What takes turns: the floor, and for each loss ours, the peer's, and ours compiled."""

    def __init__(self, names: list[str], patience: float, peers: bool, compiled: bool) -> None:
        self.patience = patience
        self.steps: dict[tuple[str, str], Callable[[Tensor, Tensor], object]] = {("floor", "ours"): step_of(None)}
        for name in names:
            self.steps[name, "ours"] = step_of(OURS[name]())
            if peers and name in PEERS:
                self.steps[name, "peer"] = step_of(PEERS[name]())
            if compiled:
                self.steps[name, "compiled"] = step_of(torch.compile(OURS[name](), fullgraph=True, dynamic=False))

    def take_turns(self, n: int, rounds: int) -> dict[tuple[str, str], list[float]]:
        """Seconds of each in each round, after one that does not count."""
        x, labels = batch(n)
        seconds: dict[tuple[str, str], list[float]] = {key: [] for key in self.steps}
        for number in range(rounds + 1):
            for key in list(self.steps):
                elapsed = self._seconds(key, x, labels)
                if elapsed is None or (number and elapsed > self.patience and key[1] != "ours"):
                    del self.steps[key]
                if elapsed is not None and number:
                    seconds[key].append(elapsed)
        return {key: values for key, values in seconds.items() if values}

    def _seconds(self, key: tuple[str, str], x: Tensor, labels: Tensor) -> float | None:
        started = time.perf_counter()
        try:
            self.steps[key](x, labels)
        except (RuntimeError, MemoryError) as error:
            print(f"{' '.join(key)} at {len(x)}: {str(error).splitlines()[0][:120]}", file=sys.stderr)
            return None
        return time.perf_counter() - started


def print_times(n: int, threads: int, seconds: Mapping[tuple[str, str], list[float]]) -> None:
    base = seconds["floor", "ours"]
    print(f"\nn = {n}, {threads} thread{'s' * (threads > 1)}; floor {1000 * statistics.median(base):.1f} ms\n")
    print("| | ms, median | lowest - highest | time / floor | peer / floor | compiled / floor |")
    print("|---|---|---|---|---|---|")
    for name in dict.fromkeys(name for name, _ in seconds):
        values = [1000 * value for value in seconds[name, "ours"]]
        ratios = " | ".join(_ratio(seconds.get((name, who)), base) for who in ("ours", "peer", "compiled"))
        print(f"| {name} | {statistics.median(values):.1f} | {min(values):.1f} - {max(values):.1f} | {ratios} |")


def _ratio(values: list[float] | None, base: list[float]) -> str:
    if values is None:
        return ""
    return f"{statistics.median(mine / other for mine, other in zip(values, base, strict=False)):.2f}"


def extra_memory(name: str, who: str, n: int) -> float | None:
    """Peak megabytes beyond the batch and the library that a step takes in a process of its own; None if it failed."""
    command = [sys.executable, "-m", "benchmarks.losses", "--measure-memory", name, who, str(n)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent.parent, check=False)
    return float(result.stdout) if result.returncode == 0 else None


def measure_memory(name: str, who: str, n: int) -> None:
    loss = None if name == "floor" else (PEERS if who == "peer" else OURS)[name]()
    step_of(loss)(*batch(64))  # what is set up once is not the step's
    x, labels = batch(n)
    Path("/proc/self/clear_refs").write_text("5")  # from here on the peak is counted anew
    before = _status("VmRSS")
    step_of(loss)(x, labels)
    print((_status("VmHWM") - before) / 1000)


def _status(field: str) -> int:
    """Kilobytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{field}:")))


def print_memory(names: list[str], sizes: list[int]) -> None:
    print("\nPeak extra MB of a process of its own, one thread: ours (peer)\n")
    print(f"| | {' | '.join(f'n = {n}' for n in sizes)} |")
    print(f"|---|{'---|' * len(sizes)}")
    for name in ["floor", *names]:
        cells, peer_lives = [], name in PEERS
        for n in sizes:
            peer = extra_memory(name, "peer", n) if peer_lives else None
            peer_lives = peer is not None and peer < PEER_MEMORY
            cells.append(f"{extra_memory(name, 'ours', n):.0f}" + (f" ({peer:.0f})" if peer is not None else ""))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


PEER_MEMORY = 2000
"""Megabytes from which on a peer is not tried at a larger size, where it would need at least four times as many."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 512, 1024, 2048, 4096, 16384])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--losses", nargs="+", choices=list(OURS), default=list(OURS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--patience", type=float, default=4.0, help="seconds")
    parser.add_argument("--no-peers", action="store_true", help="leave pytorch-metric-learning out")
    parser.add_argument("--no-compile", action="store_true", help="leave the compiled column out")
    parser.add_argument("--no-memory", action="store_true", help="leave the table of memory out")
    parser.add_argument("--measure-memory", nargs=3, metavar=("NAME", "WHO", "N"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure_memory:
        torch.set_num_threads(1)
        name, who, n = arguments.measure_memory
        return measure_memory(name, who, int(n))
    torch._dynamo.config.recompile_limit = (
        1000  # all losses share one `forward`, compiled for each of them and each size
    )
    for threads in arguments.threads:
        torch.set_num_threads(threads)
        print_machine()
        competitors = Competitors(
            arguments.losses, arguments.patience, not arguments.no_peers, not arguments.no_compile
        )
        for n in sorted(arguments.sizes):
            print_times(n, threads, competitors.take_turns(n, arguments.rounds))
            sys.stdout.flush()
    if not arguments.no_memory:
        print_memory(arguments.losses, sorted(arguments.sizes))
    return None


if __name__ == "__main__":
    main()
