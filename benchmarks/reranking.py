"""Time and memory of re-ranking, relative to the search for nearest neighbors that it starts from.

    python -m benchmarks.reranking                                 # 5,000, 20,000 and 60,502 images (SOP's test set)
    python -m benchmarks.reranking --sizes 2000 --threads 1        # a quick run

One set of clustered embeddings searches itself. Search and method take turns, round after round; the ratio is the
median of the rounds' own ratios. Both find the same number of neighbors per query, that of the method. Memory is the
peak above what the process held before.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.table import peak_extra_megabytes, print_machine, take_turns
from vicinal.retrieval import (
    ContextualReranking,
    DatabaseAugmentation,
    QueryExpansion,
    ReciprocalReranking,
    Reranking,
    rerank,
    top_k,
)

DIM, DIRECTIONS, SAMPLES_PER_CLASS = 512, 64, 5
METHODS: list[Reranking] = [
    ContextualReranking(k=16),
    ContextualReranking(k=4),
    ReciprocalReranking(),
    QueryExpansion(),
    DatabaseAugmentation(),
]

Vectors = npt.NDArray[np.float32]


def embeddings(n: int) -> Vectors:
    """Clusters of five that differ in 64 of 512 directions, some near others, like those of a trained model."""
    rng = np.random.default_rng(0)
    centers = rng.standard_normal((-(-n // SAMPLES_PER_CLASS), DIRECTIONS), dtype=np.float32)
    points = centers[rng.integers(0, len(centers), n)] + 0.7 * rng.standard_normal((n, DIRECTIONS), dtype=np.float32)
    return points @ rng.standard_normal((DIRECTIONS, DIM), dtype=np.float32)


def measure(vectors: Vectors, method: Reranking, rounds: int) -> None:
    """Print one line of the table."""
    exclude_self = np.arange(len(vectors))
    search = partial(top_k, vectors, vectors, method.num_neighbors, exclude_self=exclude_self)
    run: Callable[[], object] = partial(
        rerank, vectors, vectors, method.num_neighbors, method, exclude_self=exclude_self
    )
    seconds = take_turns({"search": search, "method": run}, rounds)
    ratio = statistics.median(mine / plain for mine, plain in zip(seconds["method"], seconds["search"], strict=True))
    before, after = (statistics.median(seconds[name]) for name in ("search", "method"))
    megabytes = peak_extra_megabytes(run)
    print(f"| {method!r} | {len(vectors):,} | {before:.2f} | {after:.2f} | {ratio:.2f} | {megabytes:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=[5000, 20_000, 60_502], help="numbers of images")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print_machine()
    print("\n| method | images | search, s | re-ranked, s | ratio | extra MB |\n|---|---|---|---|---|---|")
    for size in arguments.sizes:
        vectors = embeddings(size)
        for method in METHODS:
            measure(vectors, method, arguments.rounds)


if __name__ == "__main__":
    main()
