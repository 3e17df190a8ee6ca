"""Recall and time of an index after deletes, relative to a search of faiss that leaves out the deleted vectors itself.

    python -m benchmarks.deletes                        # 20,000 and 200,000 vectors
    python -m benchmarks.deletes --sizes 5000           # a quick run

Vectors lie in 50 clusters, or evenly in all directions. Either nothing is deleted; or 10 of the clusters, and queries
are near these; or half or nine tenths of all vectors at random. Recall@10 is the fraction of the ten nearest remaining
vectors that is found; those of `ivfpq` are found among compressed vectors. The search of faiss is that of the same
index with a selector of the remaining vectors (`IDSelectorBitmap`). Both take turns; milliseconds are those of one
query among 200.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import faiss as faiss_with_stubs
import numpy as np
import numpy.typing as npt
import pandas as pd
import torch

from benchmarks.table import print_machine, take_turns
from vicinal import Index, Table
from vicinal.retrieval import top_k
from vicinal.retrieval.index.faiss_engine import FaissEngine
from vicinal.retrieval.index.kinds import HNSW_SEARCH

faiss: Any = faiss_with_stubs  # its type stubs lack the Python arguments of most classes

DIM, CLUSTERS, DELETED_CLUSTERS, QUERIES, K = 64, 50, 10, 200, 10
SPREADS = {"in clusters": 0.5, "evenly": np.inf}

Vectors = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Case:
    """The deleted vectors, and the queries."""

    name: str
    deleted: Ids
    queries: Vectors


def unit_vectors(rows: int, spread: float) -> tuple[Vectors, Ids]:
    """Unit vectors around the centers of clusters, and the cluster of each; an infinite spread is without clusters."""
    rng = np.random.default_rng(0)
    cluster = rng.integers(0, CLUSTERS, rows)
    vectors = rng.standard_normal((CLUSTERS, DIM))[cluster] / spread + rng.standard_normal((rows, DIM))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), cluster


def cases(vectors: Vectors, cluster: Ids, has_clusters: bool) -> list[Case]:
    """The deletes, with queries that are not in the index themselves."""
    rng = np.random.default_rng(1)
    near = np.flatnonzero(cluster < DELETED_CLUSTERS)
    anywhere, near_deleted = (
        vectors[rng.choice(rows, QUERIES)] + 0.05 * rng.standard_normal((QUERIES, DIM), dtype=np.float32)
        for rows in (np.arange(len(vectors)), near)
    )
    order = rng.permutation(len(vectors))
    return [
        Case("nothing", order[:0], anywhere),
        *[Case("10 of 50 clusters, queries near them", near, near_deleted)] * has_clusters,
        Case("half, at random", order[: len(order) // 2], anywhere),
        Case("nine tenths, at random", order[: len(order) * 9 // 10], anywhere),
    ]


def search_with_selector(index: Index, queries: Vectors) -> Ids:
    """The search of faiss, which leaves out deleted vectors on its way."""
    engine = index.state.committed.engine.base
    assert isinstance(engine, FaissEngine)
    mask = np.zeros(len(engine), dtype=bool)
    mask[index.metadata.ids] = True
    selector = faiss.IDSelectorBitmap(np.packbits(mask, bitorder="little"))
    parameters = {
        "hnsw": lambda: faiss.SearchParametersHNSW(efSearch=HNSW_SEARCH, sel=selector),
        "ivfpq": lambda: faiss.SearchParametersIVF(nprobe=32, sel=selector),
    }[index.kind]()
    unit = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    return engine._faiss.search(unit, K, params=parameters)[1]


def recall(found: Ids, wanted: Ids) -> float:
    return float(np.mean([np.isin(mine, right).mean() for mine, right in zip(wanted, found, strict=True)]))


def measure(index: Index, vectors: Vectors, name: str, case: Case, rounds: int) -> None:
    """Print one line of the table."""
    index.delete(case.deleted)
    ids = index.metadata.ids
    wanted = ids[top_k(case.queries, vectors[ids], K).ids]
    competitors: dict[str, Callable[[], Ids]] = {
        "vicinal": lambda: index.search(case.queries, K).ids,
        "faiss": lambda: search_with_selector(index, case.queries),
    }
    recalls = {name: recall(search(), wanted) for name, search in competitors.items()}
    seconds = take_turns(competitors, rounds)
    cells = " | ".join(
        f"{recalls[name]:.3f} | {1000 * statistics.median(seconds[name]) / QUERIES:.2f}" for name in competitors
    )
    print(f"| {index.kind} | {len(vectors):,} {name} | {case.name} | {cells} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", type=int, default=[20_000, 200_000], help="numbers of vectors")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    faiss.omp_set_num_threads(arguments.threads)
    print_machine()
    print("\n| kind | vectors | deleted | recall@10 | ms | faiss: recall@10 | ms |\n|---|---|---|---|---|---|---|")
    kinds: tuple[Literal["hnsw", "ivfpq"], ...] = ("hnsw", "ivfpq")
    for size, (name, spread), kind in itertools.product(arguments.sizes, SPREADS.items(), kinds):
        vectors, cluster = unit_vectors(size, spread)
        index = Index.build(vectors, Table(pd.DataFrame(index=range(size))), kind)
        for case in cases(vectors, cluster, spread < np.inf):
            with tempfile.TemporaryDirectory() as folder:
                index.save(folder)
                copy = Index.load(folder)
                assert isinstance(copy, Index)
                measure(copy, vectors, name, case, arguments.rounds)


if __name__ == "__main__":
    main()
