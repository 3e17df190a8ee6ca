"""Kinds of an index: memory, time to build, latency and recall@10 against exact search.

    python -m benchmarks.indexes --sizes 60000 --out RESULTS
    python -m benchmarks.indexes --sizes 60000 1000000 --out RESULTS --figure docs/images/indexes.png

Vectors of 128 dimensions as a trained model gives them: classes of unequal size (log-normal, 20 on average), around
centers that are themselves around centers, and all of it with a variance that decays as i^-0.6 over the dimensions i,
in a random rotation. So some tens of directions hold most of the variance, a vector's neighbors are its class and then
related classes, and the tenth neighbor is not much nearer than the hundredth. Queries are further vectors of the same
classes. Recall@10 is the fraction of the ten nearest by exact search that is found.

Each index is built, saved and searched in processes of its own. Memory is the private memory (RssAnon) that loading
and one search add, with the ids of the images but without the pages of mapped files, which the system takes back when
it needs them. Single queries come one by one. OMP_NUM_THREADS=1 and --cpu give CPU time on one core, which other
programs change less. RESULTS keeps one JSON file per size; the figure shows all that are there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import numpy.typing as npt
import pandas as pd

from benchmarks.table import print_machine
from vicinal import Index, Table
from vicinal.retrieval import top_k

DIM, QUERIES, SINGLE, K = 128, 1000, 200, 10
KINDS = ("exact", "hnsw", "sq8", "ivfpq", "rabitq", "binary")
CODES = KINDS[2:]
MEASURES = {"codes_mb": "codes in memory, MB", "single_ms": "one query, ms"}
Vectors = npt.NDArray[np.float32]
Clock = Callable[[], float]


def make_vectors(rows: int, seed: int = 0) -> tuple[Vectors, Vectors]:
    """Unit vectors, and queries; see above."""
    rng = np.random.default_rng(seed)
    num_classes = max(10, rows // 20)
    weights = rng.lognormal(sigma=1.0, size=num_classes)
    coarse = rng.standard_normal((max(5, int(num_classes**0.5)), DIM), dtype=np.float32)
    centers = coarse[rng.integers(0, len(coarse), num_classes)]
    centers = centers + 0.8 * rng.standard_normal((num_classes, DIM), dtype=np.float32)
    scale = np.arange(1, DIM + 1, dtype=np.float32) ** -0.6
    rotation = np.linalg.qr(rng.standard_normal((DIM, DIM)))[0].astype(np.float32)
    vectors = np.empty((rows + QUERIES, DIM), np.float32)
    for start in range(0, len(vectors), 2**16):
        block = slice(start, min(start + 2**16, len(vectors)))
        chosen = rng.choice(num_classes, block.stop - start, p=weights / weights.sum())
        noise = rng.standard_normal((len(chosen), DIM), dtype=np.float32)
        vectors[block] = ((centers[chosen] + 0.6 * noise) * scale) @ rotation
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors[:rows], vectors[rows:]


def private_megabytes(process: int | str = "self") -> float:
    """The memory of a process that is not of files; Linux only."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssAnon:"))) / 1000


def build(folder: Path, kind: Any, rescore: int | None, clock: Clock) -> dict[str, float]:
    """Build and save an index; seconds without the saving."""
    vectors = np.load(folder / "vectors.npy", mmap_mode="r")
    table = Table(pd.DataFrame(index=range(len(vectors))))
    started = clock()
    index = Index.build(vectors, table, kind, rescore=rescore)
    seconds = clock() - started
    index.save(folder / "index")
    return {"build_s": seconds}


def search(folder: Path, clock: Clock) -> dict[str, float]:
    """Load an index, and search it by single queries and by all together."""
    queries, exact = np.load(folder / "queries.npy"), np.load(folder / "exact.npy")
    Index.build(queries[:10], Table(pd.DataFrame(index=range(10)))).search(queries[:1], K)  # what searching imports
    before = private_megabytes()
    index: Any = Index.load(folder / "index")
    index.search(queries[:1], K)
    memory, single, batch = private_megabytes() - before, [], []
    for query in queries[:SINGLE, None]:
        started = clock()
        index.search(query, K)
        single.append(clock() - started)
    for _ in range(3):
        started = clock()
        found = index.search(queries, K).ids
        batch.append(clock() - started)
    hits = [len({*mine} & {*best}) / K for mine, best in zip(found.tolist(), exact.tolist(), strict=True)]
    files = {path.name.split("-")[0]: path.stat().st_size / 1e6 for path in (folder / "index").iterdir()}
    return {
        "rescore": index.rescore,
        "memory_mb": memory,
        "codes_mb": files["vectors"],
        "mapped_mb": files.get("originals", 0.0),
        "single_ms": 1000 * float(np.median(single)),
        "batch_ms": 1000 * min(batch) / len(queries),
        "recall": float(np.mean(hits)),
    }


def in_process(*arguments: str) -> dict[str, float]:
    """Run a step of this program in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.indexes", *arguments]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return found


def measure(size: int, out: Path, options: list[str]) -> list[dict[str, Any]]:
    """All kinds at one size, printed as they come."""
    folder = out / "files"
    folder.mkdir(parents=True, exist_ok=True)
    vectors, queries = make_vectors(size)
    np.save(folder / "vectors.npy", vectors)
    np.save(folder / "queries.npy", queries)
    np.save(folder / "exact.npy", top_k(queries, vectors, K).ids)
    del vectors
    print(f"\n{size:,} vectors of {DIM} dimensions\n")
    print("| kind | rescore | memory, MB | mapped, MB | build, s | single, ms | batch, ms / query | recall@10 |")
    print("|---" * 8 + "|")
    rows = []
    for kind in KINDS:
        for rescore in (None, 0) if kind in CODES else (None,):
            given = [*options] if rescore is None else [*options, "--rescore", str(rescore)]
            row: dict[str, Any] = {"kind": kind, "size": size}
            row |= in_process("--step", "build", "--out", str(folder), "--kind", kind, *given)
            row |= in_process("--step", "search", "--out", str(folder))
            rows.append(row)
            print(
                f"| `{kind}` | {row['rescore'] or ''} | {row['memory_mb']:.0f} | {row['mapped_mb']:.0f} | "
                f"{row['build_s']:.1f} | {row['single_ms']:.2f} | {row['batch_ms']:.3f} | {row['recall']:.3f} |",
                flush=True,
            )
    return rows


def draw(rows: list[dict[str, Any]], path: Path, columns: list[str]) -> None:
    """Recall by memory and by latency: one row of panels per size, one column per measure."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    from vicinal.report.drawing import COLORS, DPI, INK, tidy, write_figure

    sizes = sorted({row["size"] for row in rows})
    figure = Figure(figsize=(max(5, 4 * len(columns)), 0.6 + 2.9 * len(sizes)), dpi=DPI, layout="constrained")
    panels = figure.subplots(len(sizes), len(columns), squeeze=False, sharey=True)
    for size, axes_of_size in zip(sizes, panels, strict=True):
        for axes, column in zip(axes_of_size, columns, strict=True):
            tidy(axes, f"recall@10 of {size:,} vectors" if column == columns[0] else "")
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.set_xlabel(MEASURES[column], fontsize=8, color=INK)
            for kind, color in zip(KINDS, COLORS, strict=False):
                for row in (row for row in rows if (row["size"], row["kind"]) == (size, kind)):
                    is_whole = row["rescore"] or kind not in CODES
                    fill, name = (color, kind) if is_whole else ("none", None)
                    axes.plot(row[column], row["recall"], "o", ms=6, color=color, mfc=fill, label=name)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(KINDS), frameon=False, fontsize=8)
    write_figure(figure, path)


def main() -> None:
    """Measure, print and draw; or one step of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="*", default=[60_000])
    parser.add_argument("--out", required=True, type=Path, help="folder of the results")
    parser.add_argument("--figure", type=Path, help="the picture to draw of all results in it")
    parser.add_argument("--panels", nargs="+", choices=[*MEASURES], default=[*MEASURES], help="of the picture")
    parser.add_argument("--cpu", action="store_true", help="CPU time of this process in place of wall time")
    parser.add_argument("--step", choices=["build", "search"], help=argparse.SUPPRESS)
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    parser.add_argument("--rescore", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    clock = time.process_time if arguments.cpu else time.perf_counter
    if arguments.step == "build":
        return print(json.dumps(build(arguments.out, arguments.kind, arguments.rescore, clock)))
    if arguments.step == "search":
        return print(json.dumps(search(arguments.out, clock)))
    print_machine()
    for size in arguments.sizes:
        rows = measure(size, arguments.out, ["--cpu"] * arguments.cpu)
        (arguments.out / f"{size}.json").write_text(json.dumps(rows, indent=1))
    if arguments.figure:
        rows = [row for path in sorted(arguments.out.glob("*.json")) for row in json.loads(path.read_text())]
        draw(rows, arguments.figure, arguments.panels)


if __name__ == "__main__":
    main()
