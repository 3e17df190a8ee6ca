"""What differs between training and evaluation mode, and switching between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.nn.functional as F
from torch import Tensor, nn

from vicinal.similarity.embeddings import normalize


def unit_vectors(vectors: Tensor, training: bool) -> Tensor:
    """L2-normalize vectors [n, d]; in training the gradient of a zero vector is bounded, which exports cannot hold."""
    return normalize(vectors) if training else F.normalize(vectors, dim=-1)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Switch a model to evaluation mode, and restore the mode of each of its modules afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
