from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from examples.figures import contextual_rings
from examples.figures.contextual_rings import ring_embedding, ring_embeddings
from tests.examples.figures.test_contextual_circle import Seen
from vicinal.losses import ContextualLoss, ContrastiveLoss


def r_precision(embeddings: Tensor, labels: Tensor) -> float:
    """R-precision; each sample is its own neighbor too."""
    nearest = (embeddings @ embeddings.T).topk(80, dim=1).indices
    return (labels[nearest] == labels[:, None]).float().mean().item()


@pytest.mark.slow
def test_figure_11() -> None:
    """Step 1 alone sorts the circles, also where they are noisy."""
    for noise, least in ((0.0, 0.95), (0.3, 0.8)):
        ring = ring_embedding(ContextualLoss(intersection=False, expansion=False), noise)
        assert r_precision(ring.embeddings, ring.labels) > least
        assert ring.losses[-50:].mean() < 0.5 * ring.losses[:20].mean()


def test_rings() -> None:
    seen = Seen()
    ring_embedding(seen, num_steps=2, noise=0.5)
    assert [labels.bincount().tolist() for _, labels in seen.batches] == [[4] * 5] * 2
    assert not torch.equal(seen.batches[0][0], seen.batches[1][0])
    ring, same, other = (ring_embedding(ContextualLoss(), num_steps=3, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(ring.embeddings, same.embeddings)
    assert not torch.allclose(ring.embeddings, other.embeddings)
    assert ring.labels.bincount().tolist() == [80] * 5
    torch.testing.assert_close(ring.points.norm(dim=1), 1.0 + ring.labels)
    torch.testing.assert_close(ring.embeddings.norm(dim=1), torch.ones(400))
    assert (ring.losses.shape, ring.embeddings.requires_grad) == ((3,), False)


def test_ring_embeddings_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contextual_rings, "ring_embedding", lambda loss, noise, seed: ring_embedding(loss, noise, 1))
    ring_embeddings({"a": ContrastiveLoss()}, tmp_path / "rings.png", noises=(0.5,))
    image = np.asarray(Image.open(tmp_path / "rings.png").convert("RGB"))
    assert len(np.unique(image.reshape(-1, 3), axis=0)) > 20
