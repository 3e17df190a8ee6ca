"""Models of whole images: embeddings one by one, pixels, and backbones that do not take them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from vicinal.data import ImageDataset, ImageTransform, Table
from vicinal.models import Embedder, embed_multi_scale
from vicinal.utils.errors import InputError

SIDES = [(80, 60), (33, 70), (64, 64), (40, 41)]
PADDED = {"dynamic_img_size": True, "dynamic_img_pad": True}


def build(backbone: str = "test_resnet", longest: int | None = 48, **arguments: Any) -> Embedder:
    torch.manual_seed(0)
    transform = ImageTransform(size=32, longest=longest)
    return Embedder(backbone, dim=8, pretrained=False, transform=transform, **arguments).eval()


@pytest.fixture(scope="module")
def pictures() -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)) for width, height in SIDES]


@pytest.mark.parametrize(("backbone", "more"), [("test_resnet", {}), ("test_vit", {"backbone_args": PADDED})])
def test_whole_images_are_embedded_one_by_one(
    backbone: str, more: dict[str, Any], pictures: list[Image.Image], tmp_path: Path
) -> None:
    model = build(backbone, **more)
    test, train = model.transform.test(), ImageTransform(longest=48, flip=0).train()
    with torch.no_grad():
        expected = torch.cat([model(test(picture)[None]) for picture in pictures])
        assert torch.equal(torch.cat([model(train(picture)[None]) for picture in pictures]), expected)  # of pixels
    for row, picture in enumerate(pictures):
        picture.save(tmp_path / f"{row}.png")
    paths = [str(tmp_path / f"{row}.png") for row in range(4)]
    dataset = ImageDataset(Table(pd.DataFrame({"path": paths})), model.transform)
    for source in (pictures, paths, dataset):
        found = model.embed(source, batch_size=3, progress=False)
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)
    model.save_pretrained(tmp_path / "model")
    assert "whole, at most 48 px" in (tmp_path / "model" / "README.md").read_text()
    loaded = Embedder.from_pretrained(tmp_path / "model")
    assert np.array_equal(loaded.embed(pictures, progress=False), model.embed(pictures, progress=False))


def test_it_is_the_same_as_evaluating_whole_images(pictures: list[Image.Image]) -> None:
    model, squares = build(), build(longest=None)
    expected = embed_multi_scale(squares, pictures, [1.0], max_size=48, progress=False)
    np.testing.assert_allclose(model.embed(pictures, progress=False), expected, atol=1e-6)
    np.testing.assert_allclose(embed_multi_scale(model, pictures, [1.0], progress=False), expected, atol=1e-6)
    scales = [1.0, 2**-0.5, 200.0]  # of a square of 32 pixels the last one would be too large at once
    with pytest.raises(InputError, match=r"scale 200\.0 would make images with sides of 9600.0 pixels"):
        embed_multi_scale(model, pictures, scales, progress=False)
    expected = embed_multi_scale(squares, pictures, scales[:2], max_size=40, progress=False)
    found = embed_multi_scale(model, pictures, scales[:2], max_size=40, progress=False)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("backbone_args", [{"dynamic_img_size": False}, {"dynamic_img_size": True}])
def test_backbones_of_some_sizes_only_are_refused(backbone_args: dict[str, bool]) -> None:
    with pytest.raises(InputError, match=r"transform.longest: test_vit does not take images of any size; make it with"):
        build("test_vit", backbone_args=backbone_args)
