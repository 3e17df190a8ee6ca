"""Time and memory of every metric of a ranking, beside the floor and beside pytorch-metric-learning.

    python -m benchmarks.evaluation                                             # the test sets' sizes: hours
    python -m benchmarks.evaluation --sizes 5924x512x59 --threads 1             # less: CUB-200-2011
    python -m benchmarks.evaluation --sizes 1000000x128x10x10000 --no-peer      # queries of a large gallery
    python -m benchmarks.evaluation --sizes 12000x512x1200 --threads 1 --cpu    # few large classes

A size is images x dimensions x images per class, and x queries if not all images search each other (leave-one-out):
then the first so many of them search all. Measured is recall@1, 10, 100 and 1000, R-precision, mAP@R and full mAP in
one call. The floor is the chunked matrix product and the top 10 of PyTorch, without any metric; the peer is
pytorch-metric-learning's calculator with faiss, which has precision@1, R-precision and mAP@R of as many neighbors as
the largest class has images. They take turns, round after round; a ratio is the median of the rounds' own ratios. With
`--cpu` seconds are those of the processor, which other programs change less; several threads count those that wait too.
Memory is what a fresh process, after a small run, held more at most than before, embeddings not counted. The clustering
metrics are apart: `--clusters` times them.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from benchmarks.table import peak_extra_megabytes, print_machine, take_turns
from vicinal.data.table import Table
from vicinal.evaluation import cluster, evaluate, evaluate_arrays

DIRECTIONS = 64
CUTS = (1, 10, 100, 1000)
FLOOR_ROWS = 256  # queries a product
PEER_BYTES = 2 * 10**9  # the peer holds several such arrays
SMALL = "500x16x5"  # run before memory is measured: imports and compilation do not count
# As CUB-200-2011, SOP and iNaturalist-2018; and queries of a large gallery.
SIZES = ("5924x512x59", "60502x512x5", "136093x512x55", "1000000x128x10x10000")

Vectors = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Task:
    """Embeddings, of which the first `queries` are searched for in all.

    Attributes:
        vectors: float32 [n, dim], unit length.
        labels: int64 [n].
        queries: how many of the rows are queries.
    """

    vectors: Vectors
    labels: Labels
    queries: int

    @property
    def max_class_size(self) -> int:
        return int(np.bincount(self.labels).max())

    @property
    def peer_bytes(self) -> int:
        """The one array in which the peer compares the queries' different labels with those of all images."""
        return len(np.unique(self.labels[: self.queries])) * len(self.labels)


def task(size: str) -> Task:
    """Clusters that differ in 64 directions and overlap, as of a trained model."""
    n, dim, samples_per_class, *some = (int(number) for number in size.split("x"))
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((-(-n // samples_per_class), DIRECTIONS), dtype=np.float32)
    labels = rng.integers(0, len(centers), n)
    points = centers[labels] + 0.9 * rng.standard_normal((n, DIRECTIONS), dtype=np.float32)
    vectors = points @ rng.standard_normal((DIRECTIONS, dim), dtype=np.float32)
    del points
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return Task(vectors, labels, min(*some, n) if some else n)


def ours(given: Task) -> None:
    """Every metric, from one pass."""
    cuts = [k for k in CUTS if k < len(given.vectors)]
    if given.queries == len(given.vectors):
        evaluate(given.vectors, Table(pd.DataFrame({"label": given.labels})), recall_at=cuts)
        return
    vectors, labels = given.vectors[: given.queries], given.labels[: given.queries]
    exclude_self = np.arange(given.queries)
    evaluate_arrays(vectors, labels, given.vectors, given.labels, exclude_self=exclude_self, recall_at=cuts)


def floor(given: Task) -> None:
    """The product and the first ten, a block of queries at a time."""
    gallery = torch.from_numpy(given.vectors)
    scores = torch.empty(FLOOR_ROWS, len(gallery))
    for start in range(0, given.queries, FLOOR_ROWS):
        block = gallery[start : min(start + FLOOR_ROWS, given.queries)]
        torch.mm(block, gallery.T, out=scores[: len(block)])
        scores[: len(block)].topk(10)


def peer(given: Task) -> None:
    """The peer's metrics, which need no full ranking."""
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    calculator = AccuracyCalculator(include=names, k=given.max_class_size, device=torch.device("cpu"))
    vectors, labels = torch.from_numpy(given.vectors), torch.from_numpy(given.labels)
    some = slice(0, given.queries)
    calculator.get_accuracy(vectors[some], labels[some], vectors, labels, ref_includes_query=True)


def clusters(given: Task) -> None:
    """k-means of all vectors with as many clusters as classes, NMI, AMI and F1."""
    cluster(given.vectors, Table(pd.DataFrame({"label": given.labels})))


def measure(size: str, names: list[str], rounds: int, clock: Callable[[], float]) -> None:
    """Print the lines of a size, the floor first."""
    given = task(size)
    if "PML" in names and given.peer_bytes > PEER_BYTES:
        print(f"| {size} | PML | left out: {given.peer_bytes / 1e9:.0f} GB to compare labels at once | | | |")
        names = [name for name in names if name != "PML"]
    megabytes = {name: _in_fresh_process(name, size) for name in names}
    runs: dict[str, Callable[[], object]] = {name: partial(COMPETITORS[name], given) for name in names}
    seconds = take_turns(runs, rounds, clock)
    for name, values in seconds.items():
        ratio = statistics.median(mine / least for mine, least in zip(values, seconds["floor"], strict=True))
        median, spread = statistics.median(values), f"{min(values):.2f} - {max(values):.2f}"
        title = f"{size}, {given.queries:,} queries"
        print(f"| {title} | {name} | {median:.2f} | {spread} | {ratio:.2f} | {megabytes[name]:.0f} |", flush=True)


def _in_fresh_process(name: str, size: str) -> float:
    """Megabytes at most above the embeddings, where nothing that ran before has left memory to be used again."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_megabytes, name, size, torch.get_num_threads()).result()


def _megabytes(name: str, size: str, threads: int) -> float:
    torch.set_num_threads(threads)
    COMPETITORS[name](task(SMALL))
    return peak_extra_megabytes(partial(COMPETITORS[name], task(size)))


COMPETITORS: dict[str, Callable[[Task], None]] = {"floor": floor, "vicinal": ours, "PML": peer, "k-means": clusters}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sizes", nargs="+", default=list(SIZES), help="images x dimensions x images per class x queries"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--no-peer", action="store_true", help="without pytorch-metric-learning")
    parser.add_argument("--clusters", action="store_true", help="with k-means and its metrics")
    parser.add_argument("--cpu", action="store_true", help="CPU time in place of the time that passes")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    names = ["floor", "vicinal", *([] if arguments.no_peer else ["PML"]), *(["k-means"] if arguments.clusters else [])]
    print_machine()
    print("\n| size | | seconds, median | lowest - highest | time / floor | extra MB |\n|---|---|---|---|---|---|")
    for size in arguments.sizes:
        measure(size, names, arguments.rounds, time.process_time if arguments.cpu else time.perf_counter)


if __name__ == "__main__":
    main()
