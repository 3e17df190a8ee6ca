"""The names of re-ranking methods in flags and requests; the methods themselves import torch."""

from __future__ import annotations

RERANKINGS = {
    "contextual": "ContextualReranking",
    "reciprocal": "ReciprocalReranking",
    "query-expansion": "QueryExpansion",
    "database-augmentation": "DatabaseAugmentation",
    "neighbor-average": "NeighborAverage",
}
"""Name -> class in :mod:`vicinal.retrieval`."""
