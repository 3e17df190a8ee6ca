"""The kinds of an index, and the parameters with which faiss and databases build and search them."""

from __future__ import annotations

from typing import Literal

from vicinal.utils.arguments import is_integer
from vicinal.utils.errors import InputError

Kind = Literal["exact", "hnsw", "sq8", "ivfpq", "rabitq", "binary"]

HNSW_LINKS = 32  # per vector
HNSW_BUILD, HNSW_SEARCH = 100, 160  # breadth of the graph search while building and while searching
IVF_PROBES = 32  # inverted lists visited
DEFAULT_RESCORE: dict[str, int] = {"sq8": 4, "ivfpq": 10, "rabitq": 20, "binary": 40}
"""Candidates per neighbor, by the kind of the codes."""
MIN_NEIGHBORS = 10  # a search for fewer neighbors has as many candidates as one for this many
MAX_RESCORE = 10_000


def product_code_bytes(dim: int) -> int:
    """The bytes of a product-quantization code: a quarter of the dimensions, or the next divisor of them below."""
    return next(size for size in range(max(dim // 4, 1), 0, -1) if dim % size == 0)


def checked_rescore(kind: str, rescore: int | None) -> int:
    """The candidates per neighbor that are compared exactly, by default those of the kind; 0: none."""
    if rescore is not None and not (is_integer(rescore) and 0 <= rescore <= MAX_RESCORE):
        raise InputError(f"rescore = {rescore} is invalid; use 0 (none) to {MAX_RESCORE:,} candidates per neighbor")
    if rescore and kind not in DEFAULT_RESCORE:
        raise InputError(f"rescore is for {', '.join(DEFAULT_RESCORE)}; the vectors of {kind} are exact: leave it out")
    return DEFAULT_RESCORE.get(kind, 0) if rescore is None else rescore
