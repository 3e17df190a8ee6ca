"""Searches a second and their latency of `vicinal serve`, against model and search in a plain loop.

    python -m benchmarks.serving --folder FOLDER                     # 60,000 and 1,000,000 vectors
    python -m benchmarks.serving --sizes 5000 --clients 1 8 --seconds 2 --backbone test_resnet --image_size 32
    python -m benchmarks.serving --soak 100000 --kills 60            # mixed requests, hostile ones too, and kills

The index has vectors of 128 dimensions in random neighborhoods of 20; it is exact, or `hnsw` above 100,000 vectors, and
stays in FOLDER for the next run. The floor is what nothing can be faster than that does the same work on the same
threads: batches of 32 images that are decoded and transformed already go through the model (random weights), and their
embeddings are searched for in the index, in a loop, without requests. With vectors it is the search alone, beside which
HTTP and JSON take most of the time. The goals are about images: 0.9 of the floor's throughput at 64 clients, and a p99
below 3 batches.

The service has the model in its process, two more processes that decode JPEGs of 500 x 375 pixels, and is asked by
clients on the same machine that each send their next request when an answer comes. They are one thread, and the CPU
that they take from the service is shown. Answers are counted from when each client has had one. Floor and service take
turns; the fraction is of the floor beside it.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the service does

import numpy as np
import pandas as pd
import torch
from PIL import Image

from benchmarks.http_load import Measurement, image_request, json_request, measure_load, serving
from benchmarks.table import print_machine
from vicinal import Embedder, Index, Table
from vicinal.data.images.transforms import ImageTransform

DIM, NEIGHBORHOOD, BATCH_SIZE, K = 128, 20, 32, 10
PHOTO = (500, 375)
REQUEST_SECONDS = 300  # 200 clients wait long on a CPU
HEADS = (
    "query", "vectors", "clients", "a second", "floor", "fraction", "p50 ms", "p95", "p99", "batch ms", "p99 / batch",
    "clients' CPU", "refused",
)  # fmt: skip


def random_neighborhoods(count: int, seed: int = 0) -> Any:
    """Vectors, float32 [count, 128], of which 20 at a time are near each other."""
    rng = np.random.default_rng(seed)
    centers = rng.standard_normal((-(-count // NEIGHBORHOOD), DIM), dtype=np.float32)
    noise = rng.standard_normal((count, DIM), dtype=np.float32)
    return centers[np.arange(count) // NEIGHBORHOOD] + 0.5 * noise


def make_index(folder: Path, size: int, model: Embedder) -> Any:
    """An index with a label and a price for each vector; one that is there already is taken."""
    if folder.exists():
        return Index.load(folder)
    rows = np.arange(size)
    table = Table(pd.DataFrame({"label": [f"class{row // NEIGHBORHOOD}" for row in rows], "price": rows % 97}))
    index = Index.build(random_neighborhoods(size), table, model_fingerprint=model.fingerprint())
    index.save(folder)
    return index


def make_model(backbone: str, image_size: int) -> Embedder:
    """A model with random weights."""
    torch.manual_seed(0)
    return Embedder(backbone, dim=DIM, pretrained=False, transform=ImageTransform(size=image_size)).eval()


def photos(count: int = 64) -> list[bytes]:
    """JPEG files of smooth noise."""
    rng, files = np.random.default_rng(0), []
    for _ in range(count):
        pixels = rng.integers(0, 255, (PHOTO[1] // 8, PHOTO[0] // 8, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).resize(PHOTO).save(buffer, "JPEG", quality=90)
        files.append(buffer.getvalue())
    return files


def floor(work: Callable[[], object], seconds: float) -> float:
    """Seconds of a batch, the median."""
    measured: list[float] = []
    work()
    while sum(measured) < seconds or len(measured) < 3:
        start = time.perf_counter()
        work()
        measured.append(time.perf_counter() - start)
    return statistics.median(measured)


def line(name: str, size: int, clients: int, measured: Measurement, batch: float) -> str:
    """A line of the table."""
    per_second = BATCH_SIZE / batch
    p50, p95, p99 = (1000 * float(np.percentile(measured.latencies, percent)) for percent in (50, 95, 99))
    cells = [
        name, f"{size:,}", clients, f"{measured.rate:.1f}", f"{per_second:.1f}", f"{measured.rate / per_second:.2f}",
        f"{p50:.1f}", f"{p95:.1f}", f"{p99:.1f}", f"{1000 * batch:.1f}", f"{p99 / 1000 / batch:.1f}",
        f"{measured.client_cpu:.2f}", measured.num_refused,
    ]  # fmt: skip
    return "| " + " | ".join(map(str, cells)) + " |"


def measure(folder: Path, size: int, arguments: argparse.Namespace) -> None:
    """Print the lines of one size of the index."""
    model = make_model(arguments.backbone, arguments.image_size)
    model.save_pretrained(folder / f"model-{arguments.backbone}-{arguments.image_size}")
    gallery = folder / f"index-{arguments.backbone}-{arguments.image_size}-{size}"
    index = make_index(gallery, size, model)
    model.to(arguments.device)
    queries = random_neighborhoods(BATCH_SIZE, seed=1)
    pixels = torch.rand(BATCH_SIZE, 3, arguments.image_size, arguments.image_size)
    floors: dict[str, Callable[[], object]] = {
        "image": lambda: index.search(model.embed(pixels, batch_size=BATCH_SIZE, progress=False), K),
        "vector": lambda: index.search(queries, K),
    }
    requests = {
        "image": [image_request("/search", data, {"k": str(K)}) for data in photos()],
        "vector": [json_request("/search", {"vector": row.tolist(), "k": K}) for row in random_neighborhoods(64, 2)],
    }
    words = ["--model", str(folder / f"model-{arguments.backbone}-{arguments.image_size}")]
    words += ["--device", arguments.device, "--max_batch", str(BATCH_SIZE), "--request_seconds", str(REQUEST_SECONDS)]
    with serving(gallery, *words) as service:
        for name, clients in ((name, clients) for name in floors for clients in arguments.clients):
            batch = floor(floors[name], arguments.seconds / 2)
            measured = measure_load(service.address, requests[name], clients, arguments.seconds)
            print(line(name, size, clients, measured, batch), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=[60_000, 1_000_000], help="numbers of vectors")
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 8, 64, 200])
    parser.add_argument("--seconds", type=float, default=12.0, help="of each measurement; its floor takes half of that")
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--image_size", type=int, default=224)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--folder", type=Path, help="keeps the indexes, which take minutes to build; otherwise none")
    parser.add_argument("--soak", type=int, metavar="N", help="send N mixed requests instead")
    parser.add_argument("--kills", type=int, default=10, help="times that the service is killed meanwhile")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        if arguments.soak is not None:
            from benchmarks.serving_soak import soak

            if wrong := soak(Path(temporary), arguments.soak, arguments.kills):
                raise SystemExit("\n".join(wrong))
            return
        print_machine()
        print("\n| " + " | ".join(HEADS) + " |\n" + "|---" * len(HEADS) + "|")
        for size in arguments.sizes:
            measure(folder, size, arguments)


if __name__ == "__main__":
    main()
