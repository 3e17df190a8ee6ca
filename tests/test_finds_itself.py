"""Every image that was indexed is its own first match, with a similarity of 1, in every kind of index."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import ExifTags, Image

from vicinal import Embedder, Index, Table
from vicinal.data import ImageTransform

SLOW_KINDS = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("hnsw", "ivfpq")]
NUM_OTHERS = 10_000  # vectors in the index of each kind: ivfpq learns from so many


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """Embeddings of pictures of all formats."""
    photos, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for number, suffix in enumerate([*(f"{turn}.jpg" for turn in range(1, 9)), "a.png", "b.png", "a.webp", "b.webp"]):
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = int(suffix[0]) if suffix[0].isdigit() else 1
        pixels = rng.integers(0, 256, (3 + number % 3, 4, 3), dtype=np.uint8)
        image = Image.fromarray(pixels).resize((60 + number, 50 + 7 * (number % 4)))
        image.save(photos / f"{number}_{suffix}", exif=exif)
    torch.manual_seed(0)
    model = Embedder("test_resnet", dim=64, pretrained=False, transform=ImageTransform(size=32))
    return model.embed(Table.from_folder(photos), progress=False)


@pytest.mark.parametrize("kind", ["exact", "sq8", "rabitq", "binary", *SLOW_KINDS])
def test_each_kind_of_index(vectors: np.ndarray, kind: Any) -> None:
    others = np.random.default_rng(1).standard_normal((NUM_OTHERS, 64)).astype(np.float32) + 5 * vectors.mean(0)
    table = Table(pd.DataFrame({"path": [f"{number}.png" for number in range(12 + NUM_OTHERS)]}))
    found = Index.build(np.concatenate([vectors, others]), table, kind).search(vectors, 1)
    assert found.ids[:, 0].tolist() == list(range(12))
    assert found.scores.min() >= 0.999
