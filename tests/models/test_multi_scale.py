"""Multi-scale descriptors and models of whole images, against one image at a time, scale by scale."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from tests.refusals import refused_call
from vicinal.data import ImageDataset, ImageTransform, Table
from vicinal.models import Embedder, embed_multi_scale
from vicinal.models.multi_scale import SCALES
from vicinal.utils.errors import InputError

SIDES = [(80, 60), (33, 70), (64, 64), (40, 41)]


def build(backbone: str = "test_resnet", longest: int | None = None, **arguments: Any) -> Embedder:
    torch.manual_seed(0)
    transform = ImageTransform(size=32, longest=longest)
    return Embedder(backbone, dim=8, pretrained=False, transform=transform, **arguments).eval()


@pytest.fixture(scope="module")
def pictures() -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)) for width, height in SIDES]


@pytest.fixture(scope="module")
def paths(pictures: list[Image.Image], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("pictures")
    for number, picture in enumerate(pictures):
        picture.save(folder / f"{number}.png")
    return [folder / f"{number}.png" for number in range(len(pictures))]


def as_tensor(model: Embedder, picture: Image.Image) -> torch.Tensor:
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (model.transform.mean, model.transform.std))
    return (torch.from_numpy(np.array(picture)).permute(2, 0, 1) / 255 - mean) / std


def one_by_one(model: Embedder, images: list[torch.Tensor], scales=SCALES) -> np.ndarray:
    rows = []
    for image in images:
        vectors = []
        for scale in scales:
            scaled = F.interpolate(image[None], scale_factor=scale, mode="bilinear", align_corners=False)
            with torch.no_grad():
                vectors.append(model(scaled)[0].double())
        mean = sum(vectors) / len(vectors)
        rows.append((mean / mean.norm()).numpy())
    return np.array(rows)


def test_the_centre_at_three_scales(pictures) -> None:
    model = build()
    view = model.transform.test()
    wanted = one_by_one(model, [view(picture) for picture in pictures])
    found = embed_multi_scale(model, pictures, batch_size=3, progress=False)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    plain = model.embed(pictures, progress=False)
    assert np.abs(found - plain).max() > 1e-3
    np.testing.assert_allclose(embed_multi_scale(model, pictures, scales=[1.0], progress=False), plain, atol=1e-6)


def test_whole_images_at_three_scales(pictures) -> None:
    model, images = build(), []
    for picture, (width, height) in zip(pictures, SIDES, strict=True):
        smaller = min(1.0, 64 / max(width, height))
        reduced = picture.copy()
        reduced.thumbnail((64, 64), Image.Resampling.LANCZOS)
        assert reduced.size == pytest.approx((width * smaller, height * smaller), abs=1)
        images.append(as_tensor(model, reduced))
    found = embed_multi_scale(model, pictures, max_size=64, progress=False)
    np.testing.assert_allclose(found, one_by_one(model, images), atol=1e-5)


@pytest.mark.parametrize("max_size", [None, 48])
def test_sources_do_not_matter(pictures, paths, max_size) -> None:
    model = build()
    wanted = embed_multi_scale(model, pictures, max_size=max_size, progress=False)
    table = Table(pd.DataFrame({"path": [str(path) for path in paths]}))
    for source in (paths, table, ImageDataset(table, model.transform)):
        np.testing.assert_allclose(
            embed_multi_scale(model, source, max_size=max_size, progress=False), wanted, atol=1e-5
        )
    assert embed_multi_scale(model, [], max_size=max_size, progress=False).shape == (0, 8)


def test_a_file_that_cannot_be_read_is_skipped_or_named(paths, tmp_path) -> None:
    model, lost = build(), tmp_path / "lost.png"
    refused_call(r"lost\.png: no such", embed_multi_scale, model, [*paths, lost], max_size=48, progress=False)
    assert len(embed_multi_scale(model, [*paths, lost], max_size=48, progress=False, on_error="skip")) == len(paths)


def test_of_a_vision_transformer_sides_are_whole_patches(pictures) -> None:
    model = build("test_vit", pooling="token", norm="none", backbone_args={"dynamic_img_size": True})
    sides: list[tuple[int, ...]] = []
    model.backbone.register_forward_pre_hook(lambda _, images: sides.append(tuple(images[0].shape[-2:])))
    found = embed_multi_scale(model, pictures[:1], max_size=1000, progress=False)
    assert sides == [(64, 80), (80, 112), (48, 64)]  # of 60 x 80 at 1, sqrt 2 and 1 / sqrt 2, in patches of 16
    image = as_tensor(model, pictures[0])[None]
    with torch.no_grad():
        vectors = [model(F.interpolate(image, size=size, mode="bilinear")).numpy() for size in list(sides)]
    mean = np.mean(vectors, axis=0)
    np.testing.assert_allclose(found, mean / np.linalg.norm(mean), atol=1e-5)


def test_a_backbone_of_one_size_says_so(pictures) -> None:
    model = build("test_vit", pooling="token", norm="none", backbone_args={"dynamic_img_size": False})
    with pytest.raises(
        InputError, match=r"test_vit takes images of 32 pixels only; .* backbone_args=\{'dynamic_img_size'"
    ):
        embed_multi_scale(model, pictures)
    refused_call(
        "test_vit takes images of 32 pixels only", embed_multi_scale, model, pictures, scales=[1.0], max_size=64
    )
    assert embed_multi_scale(model, pictures, scales=[1], progress=False).shape == (4, 8)


def test_bad_input(pictures) -> None:
    model = build()
    for arguments, message in (
        ({"scales": []}, "scales are empty"),
        ({"scales": [1.0, 0.0]}, r"scale 0\.0 is invalid; a scale is a number above 0"),
        ({"scales": [0.01]}, r"an image of 32 x 32 pixels is too small for scale 0\.01"),
        ({"max_size": 0}, "max_size is 0; it must be an integer of pixels"),
        ({"precision": "8"}, "precision is '8'"),
    ):
        refused_call(message, embed_multi_scale, model, pictures, progress=False, **arguments)
    for source in (torch.zeros(2, 3, 32, 32), [torch.zeros(3, 32, 32)]):
        refused_call(
            "max_size is for images that are read and transformed", embed_multi_scale, model, source, max_size=64
        )
        assert embed_multi_scale(model, source, progress=False).shape == (len(source), 8)


PADDED = {"dynamic_img_size": True, "dynamic_img_pad": True}


@pytest.mark.parametrize(("backbone", "more"), [("test_resnet", {}), ("test_vit", {"backbone_args": PADDED})])
def test_whole_images_are_embedded_one_by_one(
    backbone: str, more: dict[str, Any], pictures: list[Image.Image], paths: list[Path], tmp_path: Path
) -> None:
    model = build(backbone, 48, **more)
    test, train = model.transform.test(), ImageTransform(longest=48, flip=0).train()
    with torch.no_grad():
        expected = torch.cat([model(test(picture)[None]) for picture in pictures])
        assert torch.equal(torch.cat([model(train(picture)[None]) for picture in pictures]), expected)  # of pixels
    dataset = ImageDataset(Table(pd.DataFrame({"path": map(str, paths)})), model.transform)
    for source in (pictures, paths, dataset):
        found = model.embed(source, batch_size=3, progress=False)
        np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)
    model.save_pretrained(tmp_path / "model")
    assert "whole, at most 48 px" in (tmp_path / "model" / "README.md").read_text()
    loaded = Embedder.from_pretrained(tmp_path / "model")
    assert np.array_equal(loaded.embed(pictures, progress=False), model.embed(pictures, progress=False))


def test_it_is_the_same_as_evaluating_whole_images(pictures: list[Image.Image]) -> None:
    model, squares = build(longest=48), build()
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
        build("test_vit", 48, backbone_args=backbone_args)
