"""Mixup of embeddings, without computing the mixed ones: SiMix within a class, Metrix of positives and negatives."""

from vicinal.mixing.metrix import Metrix
from vicinal.mixing.simix import SiMix

__all__ = ["Metrix", "SiMix"]


def __dir__() -> list[str]:
    return __all__
