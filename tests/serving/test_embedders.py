"""The embedders of the service give the embeddings of the models, with the steps after them."""

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from tests.serving.service import noise, random_vectors
from vicinal import Embedder
from vicinal.data import ImageTransform
from vicinal.models import embed_multi_scale
from vicinal.models.head import shortened
from vicinal.retrieval import PCAWhitening
from vicinal.serving.decoding import Decoder, ImageTask
from vicinal.serving.embedders import TorchEmbedder, as_image_embedder
from vicinal.workflows import BatchEmbedder, EmbeddingReader

SIZES = ((40, 30), (64, 64), (33, 90))
FILES = [noise(number, size) for number, size in enumerate(SIZES)]


def embed(embedder: Any) -> np.ndarray:
    decoder = Decoder(embedder.preparation(), 10**6, embedder.preparation.channels)
    return embedder.embed([decoder.perform(ImageTask(data)).pixels for data in FILES])


def images() -> list[Image.Image]:
    return [Image.open(BytesIO(data)) for data in FILES]


def test_steps_after_the_model(model: Embedder, tmp_path: Path) -> None:
    plain = model.embed(images(), progress=False)
    whitening, file = PCAWhitening.fit(random_vectors(50), dim=6), str(tmp_path / "whitening.safetensors")
    whitening.save(file)
    cases: dict[str, tuple[dict[str, Any], np.ndarray]] = {
        "alone": ({}, plain),
        "whitening": ({"whitening": file}, whitening.apply(plain)),
        "dimensions": ({"dim": 3}, shortened(plain, 3)),
        "both": ({"whitening": file, "dim": 3}, shortened(whitening.apply(plain), 3)),
        "scales": ({"scales": (1.0, 0.5)}, embed_multi_scale(model, images(), (1.0, 0.5), progress=False)),
        "whole images": (
            {"scales": (1.0,), "max_size": 48}, embed_multi_scale(model, images(), (1.0,), 48, progress=False)
        ),
    }  # fmt: skip
    for name, (options, expected) in cases.items():
        batches = BatchEmbedder(model, EmbeddingReader(engine="torch", device="cpu", **options))
        embedder = TorchEmbedder(batches, batches.transform, "test", None, model)
        np.testing.assert_allclose(embed(embedder), expected, atol=1e-5, err_msg=name)
        assert embedder.dim == expected.shape[1], name


def test_models_of_gray_images() -> None:
    torch.manual_seed(0)
    gray = Embedder("test_resnet", dim=4, pretrained=False, transform=ImageTransform(size=32, channels=1)).eval()
    expected = gray.embed(images(), progress=False)
    np.testing.assert_allclose(embed(as_image_embedder(gray)), expected, atol=1e-5)


def test_the_model_keeps_its_threads(model: Embedder) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        as_image_embedder(model)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
