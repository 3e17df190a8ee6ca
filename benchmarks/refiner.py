"""Speed and memory of the context refiner: embeddings per second, a whole set end to end, training steps, one query.

    python -m benchmarks.refiner                                              # SOP's test set end to end, 60,502 images
    python -m benchmarks.refiner --images 2000 --set 5000 --rounds 2          # a quick run
    python -m benchmarks.refiner --device cuda

The floor is the work that no implementation can avoid: four products of [n, 512] with [512, 512] per block, in
chunks of the same number of rows, and nothing else; in training each has two more of its size in the backward pass. The
naive implementation gathers the same neighbors and multiplies each of them with the matrices of keys and values.
Competitors take turns, round after round; ratios are those of one round. Goals: at most 1.5 times the floor, and
below 1 GB of extra memory. Memory is measured in a separate process, beyond the embeddings.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.reranking import embeddings
from benchmarks.table import peak_extra_megabytes, print_machine, take_turns
from vicinal.losses import MultiSimilarityLoss
from vicinal.models.refiner import ContextRefiner
from vicinal.retrieval.query_gallery import QueryGallery
from vicinal.retrieval.refinement import Refinement, refine
from vicinal.retrieval.scores import UnitVectors

DIM, SAMPLES_PER_CLASS = 512, 4
PAPER: dict[str, Any] = {  # without the few numbers of the defaults, which cost nothing
    "attention_start": "random",
    "learn_temperature": False,
    "null_similarity": None,
    "residual_gate": False,
}
STEPS = 5  # training steps per round
FLOOR = "matrix products (floor)"

Run = Callable[[], object]


def build_refiner(arguments: argparse.Namespace) -> ContextRefiner:
    """A refiner that moves embeddings a little."""
    torch.manual_seed(0)
    refiner = ContextRefiner(DIM, arguments.depth, arguments.num_heads, arguments.neighbors, **PAPER)
    with torch.no_grad():
        for name, weight in refiner.named_parameters():
            if name.endswith("output"):
                weight.copy_(0.1 * torch.randn(DIM, DIM) / DIM**0.5)
    return refiner.to(arguments.device).eval()


def unit_vectors(n: int, device: str) -> UnitVectors:
    """Clustered embeddings on the device."""
    return UnitVectors(torch.from_numpy(embeddings(n)).to(device), "embedding")


def random_neighbors(n: int, k: int) -> npt.NDArray[np.int64]:
    """Random neighbors [n, k], which need no search."""
    return np.random.default_rng(0).integers(0, n, (n, k))


def default_chunk_size(method: Refinement, vectors: UnitVectors, neighbors: npt.NDArray[np.int64]) -> int:
    """The number of rows per chunk that the refinement chooses."""
    seen: list[int] = []
    handle = method.refiner.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    method.refine_vectors(vectors, vectors, neighbors)
    handle.remove()
    return max(seen)


def products(vectors: UnitVectors, weights: list[Tensor], rows: int) -> Tensor:
    """The floor: every row is multiplied with all matrices."""
    with torch.inference_mode():
        for start in range(0, len(vectors), rows):
            x = vectors.block(start, start + rows)
            for weight in weights:
                x = x @ weight.T
    return x.cpu()  # waits for the device


def naive_refinement(
    refiner: ContextRefiner, vectors: UnitVectors, neighbors: npt.NDArray[np.int64], rows: int
) -> npt.NDArray[np.float32]:
    """Refined embeddings, with keys and values computed for every gathered neighbor."""
    refined = np.empty((len(vectors), vectors.dim), np.float32)
    with torch.inference_mode():
        for start in range(0, len(vectors), rows):
            place = slice(start, start + rows)
            context = vectors.take(neighbors[place].ravel()).view(-1, neighbors.shape[1], vectors.dim)
            refined[place] = _naive_blocks(refiner, vectors.block(place.start, place.stop), context).cpu().numpy()
    return refined


def _naive_blocks(refiner: ContextRefiner, e: Tensor, context: Tensor) -> Tensor:
    split = (refiner.num_heads, refiner.dim // refiner.num_heads)
    scale = refiner.dim / split[1] ** 0.5
    for block in refiner.blocks:
        query, key, value = (getattr(block, name) for name in ("query", "key", "value"))
        queries = F.linear(e, query).view(len(e), *split).unsqueeze(2)
        keys, values = (F.linear(context, weight).view(len(e), -1, *split).transpose(1, 2) for weight in (key, value))
        added = F.scaled_dot_product_attention(queries, keys, values, scale=scale).flatten(1)
        e = F.normalize(e + F.linear(added, block.get_parameter("output")), dim=1)
    return e


def print_refining(arguments: argparse.Namespace) -> None:
    """Embeddings per second, with neighbors that are known."""
    method, vectors = Refinement(build_refiner(arguments)), unit_vectors(arguments.images, arguments.device)
    neighbors = random_neighbors(arguments.images, arguments.neighbors)
    rows = arguments.chunk_size or default_chunk_size(method, vectors, neighbors)
    weights = [torch.randn(DIM, DIM, device=arguments.device) / DIM**0.5 for _ in range(4 * arguments.depth)]
    ours = partial(method.refine_vectors, vectors, vectors, neighbors, rows)
    naive = partial(naive_refinement, method.refiner, vectors, neighbors, rows)
    np.testing.assert_allclose(ours(), naive(), atol=1e-4)
    competitors: dict[str, Run] = {
        FLOOR: partial(products, vectors, weights, rows),
        "refined": ours,
        "naive": naive,
    }
    print_rates(
        f"{arguments.images:,} embeddings with known neighbors, {rows} at a time",
        take_turns(competitors, arguments.rounds),
        arguments.images,
        "embeddings",
    )


def print_rates(title: str, seconds: dict[str, list[float]], items: int, unit: str) -> None:
    """Print rates and times relative to the floor, median and spread."""
    print(f"\n### {title}\n\n| | {unit}/s, median | lowest - highest | time / floor | lowest - highest |")
    print("|---|---|---|---|---|")
    for name, values in seconds.items():
        rates = sorted(items / value for value in values)
        ratios = sorted(mine / floor for mine, floor in zip(values, seconds[FLOOR], strict=True))
        rate, ratio = statistics.median(rates), statistics.median(ratios)
        spread = f"{_short(rates[0])} - {_short(rates[-1])}"
        print(f"| {name} | {_short(rate)} | {spread} | {ratio:.2f} | {ratios[0]:.2f} - {ratios[-1]:.2f} |", flush=True)


def _short(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def print_whole_set(arguments: argparse.Namespace) -> None:
    """Search and refinement of a set by its own neighbors, and the memory of both."""
    method, vectors = Refinement(build_refiner(arguments)), unit_vectors(arguments.set, arguments.device)
    found = method.find_context(QueryGallery.leave_one_out(vectors))
    competitors: dict[str, Run] = {
        "search": lambda: method.find_context(QueryGallery.leave_one_out(vectors)),
        "refinement": partial(method.refine_vectors, vectors, vectors, found, arguments.chunk_size),
    }
    seconds = take_turns(competitors, arguments.rounds)
    print(f"\n### {arguments.set:,} embeddings end to end\n\n| | s, median | lowest - highest |\n|---|---|---|")
    both = [sum(parts) for parts in zip(*seconds.values(), strict=True)]
    for name, values in {**seconds, "both": both}.items():
        print(f"| {name} | {statistics.median(values):.2f} | {min(values):.2f} - {max(values):.2f} |")
    print(f"\nextra memory at the peak: {megabytes(arguments):.0f} MB", flush=True)


def megabytes(arguments: argparse.Namespace) -> float:
    """Peak memory of :func:`refine` in a separate process, beyond refiner and embeddings."""
    names = ("set", "depth", "num_heads", "neighbors", "threads", "device", "chunk_size")
    given = [f"--{name}={value}" for name in names if (value := getattr(arguments, name)) is not None]
    command = [sys.executable, "-m", "benchmarks.refiner", "--measure", *given]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(arguments: argparse.Namespace) -> None:
    """Print what :func:`megabytes` reads; on a GPU, its memory."""
    refiner, vectors = build_refiner(arguments), embeddings(arguments.set)
    refine(refiner, vectors[:100])  # excludes what libraries allocate once
    run = partial(refine, refiner, vectors, chunk_size=arguments.chunk_size)
    if arguments.device == "cpu":
        print(peak_extra_megabytes(run))
        return
    before = torch.cuda.memory_allocated(arguments.device)
    torch.cuda.reset_peak_memory_stats(arguments.device)
    run()
    print((torch.cuda.max_memory_allocated(arguments.device) - before) / 1e6)


def print_training(arguments: argparse.Namespace) -> None:
    """Steps per second: gathering of neighbors, forward, multi-similarity loss, backward, AdamW."""
    weights = [torch.randn(DIM, DIM, device=arguments.device) / DIM**0.5 for _ in range(4 * arguments.depth)]
    floor: Run = partial(training_products, arguments.batch_size, weights)
    competitors: dict[str, Run] = {FLOOR: _repeat(floor), "training step": _repeat(training_step(arguments))}
    print_rates(f"Training, batch {arguments.batch_size}", take_turns(competitors, arguments.rounds), STEPS, "steps")


def _repeat(run: Run) -> Run:
    """Several runs, as one is too short to be timed."""
    return lambda: [run() for _ in range(STEPS)]


def training_products(batch_size: int, weights: list[Tensor]) -> Tensor:
    """The floor of a step: each product forward, and both of its gradients."""
    x = torch.ones(batch_size, DIM, device=weights[0].device)
    with torch.inference_mode():
        for weight in weights:
            y = x @ weight.T
            _, x = y.T @ x, y @ weight
    return x.cpu()


def training_step(arguments: argparse.Namespace) -> Run:
    """A training step on random embeddings; they and their neighbors are known."""
    refiner = build_refiner(arguments).train()
    vectors, loss = unit_vectors(arguments.images, arguments.device), MultiSimilarityLoss()
    neighbors = random_neighbors(arguments.images, arguments.neighbors)
    labels = (torch.arange(arguments.batch_size) // SAMPLES_PER_CLASS).to(arguments.device)
    optimizer = torch.optim.AdamW(refiner.parameters(), lr=1e-5, weight_decay=1e-2)
    rng = np.random.default_rng(0)

    def step() -> float:
        rows = rng.choice(arguments.images, arguments.batch_size)
        context = vectors.take(neighbors[rows].ravel()).view(len(rows), arguments.neighbors, DIM)
        value: Tensor = loss(refiner(vectors.take(rows), context), labels)
        optimizer.zero_grad()
        torch.autograd.backward(value)
        optimizer.step()
        return value.item()

    return step


def print_latency(arguments: argparse.Namespace) -> None:
    """One query against a gallery, as in an index: a search for its neighbors, and refinement."""
    method, gallery = Refinement(build_refiner(arguments), "gallery"), unit_vectors(arguments.set, arguments.device)
    query = UnitVectors(torch.randn(1, DIM, device=arguments.device), "query")

    def search() -> npt.NDArray[np.int64]:
        return method.find_context(QueryGallery(query, gallery, np.full(1, -1)))

    competitors: dict[str, Run] = {
        f"its neighbors among {arguments.set:,}": search,
        "refinement": partial(method.refine_vectors, query, gallery, search()),
    }
    seconds = take_turns(competitors, 10 * arguments.rounds)
    print("\n### A single query\n\n| | ms, median | lowest - highest |\n|---|---|---|")
    for name, values in seconds.items():
        times = sorted(1000 * value for value in values)
        print(f"| {name} | {statistics.median(times):.2f} | {times[0]:.2f} - {times[-1]:.2f} |")


def main() -> None:
    """All tables, or one measurement of memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=5000, help="embeddings refined with known neighbors")
    parser.add_argument("--set", type=int, default=60_502, help="embeddings end to end, and the gallery of a query")
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--num_heads", type=int, default=4)
    parser.add_argument("--neighbors", type=int, default=8)
    parser.add_argument("--chunk_size", type=int, help="embeddings refined at a time; None: chosen by `refine`")
    parser.add_argument("--batch_size", type=int, default=128, help="of a training step")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.measure:
        return measure(arguments)
    print_machine()
    size = f"d = {DIM}, depth {arguments.depth}, k = {arguments.neighbors}, {arguments.num_heads} heads"
    print(f"{arguments.device}; {size}")
    print_refining(arguments)
    print_whole_set(arguments)
    print_training(arguments)
    print_latency(arguments)
    return None


if __name__ == "__main__":
    main()
