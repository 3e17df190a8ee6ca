"""Re-ranking: rankings are improved by the neighbors that query and gallery images have in common, or by
their patches.

Flags and requests name the methods; the methods themselves import torch.
"""

from __future__ import annotations

RERANKINGS = {
    "contextual": "ContextualReranking",
    "reciprocal": "ReciprocalReranking",
    "query-expansion": "QueryExpansion",
    "database-augmentation": "DatabaseAugmentation",
    "neighbor-average": "NeighborAverage",
    "local": "LocalReranking",
}
"""Name -> class in :mod:`vicinal.retrieval`."""
