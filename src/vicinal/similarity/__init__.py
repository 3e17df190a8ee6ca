"""Anchors, references and their pairs: the input of every loss.

:class:`PairSource` holds the normalized anchors and references of a batch and its positive and negative pairs. A
distributed training loop of your own builds one with :meth:`PairSource.from_distributed_batch` and passes it to
`Loss.parts`.
"""

from vicinal.similarity.embeddings import Relation, normalize
from vicinal.similarity.pair_source import PairSource
from vicinal.similarity.rows import Rows

__all__ = ["PairSource", "Relation", "Rows", "normalize"]


def __dir__() -> list[str]:
    return __all__
