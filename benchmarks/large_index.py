"""Indexes of codes of 10,000,000 vectors, built by the command from a mapped file: time, memory, recall, latency.

    python -m benchmarks.large_index --size 10000000 --out RESULTS
    python -m benchmarks.large_index --size 1000000 --out RESULTS --kinds rabitq

The vectors of 128 dimensions are those of `benchmarks.indexes`: classes of heavy-tailed sizes within superclasses, some
tens of directions with most of the variance. Beside `vectors.npy` is a CSV table of as many rows, a path and a label
each. `vicinal index build` is a process of its own. Beside its wall time is the CPU time of all threads, which other
programs change less. Memory is the peak of its private memory (RssAnon), without the pages of mapped files, which the
system takes back when it needs them.

The search is another process, of one thread. `cold`: 200 single queries after the file of the vectors was dropped from
the page cache; `warm`: the same again, and then 1,000 queries in one call. Recall@10 is the fraction of the ten nearest
by exact search that is found, of 1,000 further vectors of the same classes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np

from benchmarks.indexes import DIM, SINGLE, K, make_vectors, private_megabytes
from benchmarks.table import print_machine
from vicinal import Index
from vicinal.retrieval import top_k

POLL = 0.1  # seconds
TICKS = os.sysconf("SC_CLK_TCK")


def make_source(size: int, folder: Path) -> None:
    """Write vectors with their table, queries, and the exact neighbors of the queries."""
    vectors, queries = make_vectors(size)
    np.save(folder / "queries.npy", queries)
    np.save(folder / "exact.npy", top_k(queries, vectors, K).ids)
    with (folder / "vectors.table.csv").open("w") as file:
        file.write("path,label\n")
        for start in range(0, size, 2**16):
            rows = range(start, min(start + 2**16, size))
            file.writelines(f"photos/{row // 1000:05d}/{row:08d}.jpg,class {row // 20}\n" for row in rows)
    np.save(folder / "vectors.npy", vectors)


def build(folder: Path, kind: str) -> dict[str, float]:
    """Build the index by the command: seconds, CPU seconds, and the peak of its private memory."""
    command = [sys.executable, "-m", "vicinal", "index", "build", str(folder / f"index-{kind}")]
    command += [str(folder / "vectors.npy"), "--kind", kind, "--overwrite"]
    started, peak, cpu = time.perf_counter(), 0.0, 0.0
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        with suppress(OSError, StopIteration):  # it may end meanwhile
            peak, cpu = max(peak, private_megabytes(process.pid)), _cpu(process.pid)
        time.sleep(POLL)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed")
    return {"build, s": time.perf_counter() - started, "build, CPU s": cpu, "build, peak GB": peak / 1000}


def _cpu(process: int) -> float:
    """The CPU time of a process and all its threads, in seconds."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def search(folder: Path, kind: str) -> dict[str, float]:
    """Load an index, and search it by single queries and by all together."""
    queries, exact = np.load(folder / "queries.npy"), np.load(folder / "exact.npy")
    before, started = private_megabytes(), time.perf_counter()
    index: Any = Index.load(folder / f"index-{kind}")
    seconds = time.perf_counter() - started
    index.search(queries[-1:], K)
    memory = private_megabytes() - before
    sizes = {path.name.split("-")[0]: path.stat().st_size / 1e9 for path in (folder / f"index-{kind}").iterdir()}
    _drop_from_cache(next((folder / f"index-{kind}").glob("originals-*")))
    singles = {"cold": _single_ms(index, queries), "warm": _single_ms(index, queries)}
    started, cpu = time.perf_counter(), time.process_time()
    found = index.search(queries, K).ids
    batch, batch_cpu = time.perf_counter() - started, time.process_time() - cpu
    hits = [len({*mine} & {*best}) / K for mine, best in zip(found.tolist(), exact.tolist(), strict=True)]
    return {
        "recall@10": float(np.mean(hits)),
        "load, s": seconds,
        "search, private GB": memory / 1000,
        "on disk, GB": sum(sizes.values()),
        "codes, GB": sizes["vectors"],
        "table, GB": sizes["index.sqlite"],
        **{
            f"{name} {which}, {clock}": float(np.percentile(times, percent))
            for name, both in singles.items()
            for which, percent in (("median", 50), ("p99", 99))
            for clock, times in zip(("ms", "CPU ms"), both, strict=True)
        },
        "batch, ms / query": 1000 * batch / len(queries),
        "batch, CPU ms / query": 1000 * batch_cpu / len(queries),
    }


def _single_ms(index: Index, queries: Any) -> tuple[list[float], list[float]]:
    """Milliseconds and CPU milliseconds of single queries."""
    times, cpu = [], []
    for query in queries[:SINGLE, None]:
        started, used = time.perf_counter(), time.process_time()
        index.search(query, K)
        times.append(1000 * (time.perf_counter() - started))
        cpu.append(1000 * (time.process_time() - used))
    return times, cpu


def _drop_from_cache(path: Path) -> None:
    """Drop a file from the page cache, as far as no process has its pages mapped."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    """Measure and print; or one step of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=10_000_000)
    parser.add_argument("--out", required=True, type=Path, help="folder of the vectors, the indexes and results.json")
    parser.add_argument("--kinds", nargs="+", default=["ivfpq", "rabitq"])
    parser.add_argument("--step", choices=["source", "search"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    folder: Path = arguments.out
    if arguments.step == "source":
        return make_source(arguments.size, folder)
    if arguments.step == "search":
        return print(json.dumps(search(folder, arguments.kinds[0])))
    folder.mkdir(parents=True, exist_ok=True)
    print_machine()
    print(f"{arguments.size:,} vectors of {DIM} dimensions", flush=True)
    own = [sys.executable, "-m", "benchmarks.large_index", "--out", str(folder), "--size", str(arguments.size)]
    if not (folder / "vectors.npy").exists():
        subprocess.run([*own, "--step", "source"], check=True)
    results: dict[str, dict[str, float]] = {}
    for kind in arguments.kinds:
        results[kind] = build(folder, kind)
        print(kind, json.dumps(results[kind]), flush=True)
        step, one_thread = [*own, "--step", "search", "--kinds", kind], {**os.environ, "OMP_NUM_THREADS": "1"}
        found = subprocess.run(step, check=True, capture_output=True, text=True, env=one_thread)
        results[kind] |= json.loads(found.stdout)
        (folder / "results.json").write_text(json.dumps(results, indent=1))
    print(f"| | {' | '.join(f'`{kind}`' for kind in results)} |\n|---{'|---' * len(results)}|")
    for name in next(iter(results.values())):
        print(f"| {name} | {' | '.join(f'{each.get(name, np.nan):,.3f}' for each in results.values())} |")


if __name__ == "__main__":
    main()
