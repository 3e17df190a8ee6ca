"""Times and memory of one forward and backward pass of losses, ours and others', beside the floor: what the benchmarks
of losses share.

The floor is what no loss of all pairs can do without: normalize, multiply all embeddings with all, and back. Floor,
ours, the peer, and ours under torch.compile take turns in one process; memory is that of a process of its own. Whoever
needs longer than `--patience` seconds at a size is left out at larger ones, and so is whoever runs out of memory.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.table import peak_extra_megabytes, print_machine

DIM, SAMPLES_PER_CLASS = 512, 4
PEER_MEMORY = 2000
"""Megabytes from which on a peer is not tried at a larger size, where it would need at least four times as many."""
LossFunction = Callable[[Tensor, Tensor], Tensor]
Makers = Mapping[str, Callable[[], LossFunction]]


def batch(n: int, samples_per_class: int = SAMPLES_PER_CLASS) -> tuple[Tensor, Tensor]:
    """Clustered embeddings [n, 512], some classes near others, in random order; and their labels."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) // samples_per_class
    centers = torch.randn(n // samples_per_class, DIM, generator=generator)
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

    def __init__(
        self, ours: Makers, peers: Makers, compiled: bool, patience: float, clock: Callable[[], float]
    ) -> None:
        self.patience, self.clock = patience, clock
        self.steps: dict[tuple[str, str], Callable[[Tensor, Tensor], object]] = {("floor", "ours"): step_of(None)}
        for name, make in ours.items():
            self.steps[name, "ours"] = step_of(make())
            if name in peers:
                self.steps[name, "peer"] = step_of(peers[name]())
            if compiled:
                self.steps[name, "compiled"] = step_of(torch.compile(make(), fullgraph=True, dynamic=False))

    def take_turns(self, n: int, samples_per_class: int, rounds: int) -> dict[tuple[str, str], list[float]]:
        """Seconds of each in each round, after one that does not count."""
        x, labels = batch(n, samples_per_class)
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
        started = self.clock()
        try:
            self.steps[key](x, labels)
        except (RuntimeError, MemoryError) as error:
            print(f"{' '.join(key)} at {len(x)}: {str(error).splitlines()[0][:120]}", file=sys.stderr)
            return None
        return self.clock() - started


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


@dataclass(frozen=True)
class Benchmark:
    """A benchmark of losses as a command.

    Attributes:
        module: its name, such as benchmarks.losses.
        ours: name -> makes our loss.
        peers: name -> makes the peer's loss.
        compiles: whether ours are compiled too.
    """

    module: str
    ours: Makers
    peers: Makers
    compiles: bool

    def run(self, description: str | None) -> None:
        """Parse the command line, measure, print."""
        arguments = self._parser(description).parse_args()
        if arguments.measure_memory:
            torch.set_num_threads(1)
            name, who, n = arguments.measure_memory
            self._measure_memory(name, who, int(n))
            return
        _limit_memory()
        ours = {name: self.ours[name] for name in arguments.losses}
        peers = {} if arguments.no_peers else self.peers
        compiled = self.compiles and not arguments.no_compile
        # All losses share one `forward`, compiled for each of them and each size.
        torch._dynamo.config.recompile_limit = 1000
        for threads in arguments.threads:
            torch.set_num_threads(threads)
            print_machine()
            clock = time.process_time if arguments.cpu else time.perf_counter
            competitors = Competitors(ours, peers, compiled, arguments.patience, clock)
            for n in sorted(arguments.sizes):
                print_times(n, threads, competitors.take_turns(n, arguments.samples_per_class, arguments.rounds))
                sys.stdout.flush()
        if not arguments.no_memory:
            self._print_memory(list(ours), peers, sorted(arguments.sizes))

    def _parser(self, description: str | None) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--sizes", type=int, nargs="+", default=[128, 512, 1024, 2048, 4096, 16384])
        parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
        parser.add_argument("--losses", nargs="+", choices=list(self.ours), default=list(self.ours), metavar="NAME")
        parser.add_argument(
            "--samples_per_class",
            type=int,
            default=SAMPLES_PER_CLASS,
            help="embeddings per class, where times are taken",
        )
        parser.add_argument("--rounds", type=int, default=5)
        parser.add_argument("--patience", type=float, default=4.0, help="seconds")
        parser.add_argument("--cpu", action="store_true", help="CPU times, on a machine that others use too")
        parser.add_argument("--no-peers", action="store_true", help="leave pytorch-metric-learning out")
        if self.compiles:
            parser.add_argument("--no-compile", action="store_true", help="leave the compiled column out")
        parser.add_argument("--no-memory", action="store_true", help="leave the table of memory out")
        parser.add_argument("--measure-memory", nargs=3, metavar=("NAME", "WHO", "N"), help=argparse.SUPPRESS)
        return parser

    def _print_memory(self, names: list[str], peers: Makers, sizes: list[int]) -> None:
        print("\nPeak extra MB of a process of its own, one thread: ours (peer)\n")
        print(f"| | {' | '.join(f'n = {n}' for n in sizes)} |")
        print(f"|---|{'---|' * len(sizes)}")
        for name in ["floor", *names]:
            cells, peer_lives = [], name in peers
            for n in sizes:
                peer = self._extra_memory(name, "peer", n) if peer_lives else None
                peer_lives = peer is not None and peer < PEER_MEMORY
                ours = f"{self._extra_memory(name, 'ours', n):.0f}"
                cells.append(ours + (f" ({peer:.0f})" if peer is not None else ""))
            print(f"| {name} | {' | '.join(cells)} |", flush=True)

    def _extra_memory(self, name: str, who: str, n: int) -> float | None:
        """Peak megabytes beyond batch and library that a step takes in a process of its own; None: it failed."""
        command = [sys.executable, "-m", self.module, "--measure-memory", name, who, str(n)]
        result = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent.parent, check=False)
        return float(result.stdout) if result.returncode == 0 else None

    def _measure_memory(self, name: str, who: str, n: int) -> None:
        step = step_of(None if name == "floor" else (self.peers if who == "peer" else self.ours)[name]())
        step(*batch(64))  # one-time set-up is not part of the step
        x, labels = batch(n)
        print(peak_extra_megabytes(lambda: step(x, labels)))


def _limit_memory() -> None:
    """Let who asks for too much fail by itself, where the system would end the whole process."""
    kilobytes = next(
        int(line.split()[1])
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemAvailable:")
    )
    resource.setrlimit(resource.RLIMIT_DATA, (int(0.8 * 1024 * kilobytes), resource.RLIM_INFINITY))
