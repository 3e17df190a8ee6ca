"""Finding neighbours: exactly (`top_k`), or with an `Index` that is kept for searching again and again."""

from vicinal.retrieval.index import Index, Matches
from vicinal.retrieval.neighbors import Neighbors, top_k
from vicinal.retrieval.search import Found, find

__all__ = ["Found", "Index", "Matches", "Neighbors", "find", "top_k"]
