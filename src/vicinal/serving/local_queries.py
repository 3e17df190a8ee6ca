"""Local features of the images of requests, and searches that are re-ranked by those that the index stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vicinal.models.embedder import Embedder
from vicinal.models.feature_maps import patch_transform
from vicinal.retrieval.index.interface import ImageIndex
from vicinal.retrieval.reranking.local import LocalReranking
from vicinal.retrieval.reranking.local_features import Codes, IndexFeatures, LocalEncoder, StoredFeatures
from vicinal.serving.problems import Problem

NONE_STORED = "rerank: the index stores no local features; build it with --local"


class LocalQueries:
    """The local features of images that clients send; without a transform only items have some."""

    def __init__(self, settings: dict[str, Any], embedder: Any) -> None:
        model: Any = getattr(embedder, "local_model", None)
        self._encoder: LocalEncoder | None = None
        if isinstance(model, Embedder) and hasattr(model.backbone, "forward_intermediates"):
            model.eval()  # for good, as one thread embeds while others compute local features
            self._encoder = LocalEncoder.from_settings(model, settings)
        self.transform = None if self._encoder is None else patch_transform(self._encoder.model, self._encoder.size)

    def encode(self, pixels: npt.NDArray[np.uint8]) -> Codes:
        """The codes of an image that was decoded with the transform, uint8 [patches, dim]."""
        import torch

        from vicinal.data.images.image_ops import normalized

        assert self._encoder is not None
        assert self.transform is not None
        return self._encoder.encode(normalized(torch.from_numpy(pixels)[None], self.transform), progress=False)[0]


def stored_codes(index: ImageIndex, number: int) -> Codes:
    """The codes of an item, uint8 [patches, dim]."""
    settings, found = index.local_settings, index.local_codes(np.array([number], np.int64))
    if settings is None or number not in found:
        raise Problem(422, f"rerank: item {number} has no local features")
    return np.frombuffer(found[number], np.uint8).reshape(-1, settings["dim"])


def local_reranking(index: ImageIndex, codes: Sequence[Codes]) -> LocalReranking:
    """The re-ranking of queries with these codes, by the local features and the weight that the index stores."""
    settings = index.local_settings
    if settings is None:
        raise Problem(422, NONE_STORED)
    rows, columns = settings["grid"]
    queries = StoredFeatures(np.stack(codes), (rows, columns))
    return LocalReranking(weight=settings["weight"]).with_features(queries, IndexFeatures(index))
