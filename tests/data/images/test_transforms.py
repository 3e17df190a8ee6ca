import json
import resource
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from tests.refusals import refused_call
from vicinal.data import ImageTransform
from vicinal.data.images.image_ops import RandomRotation


def noise(height: int, width: int, channels: int = 3) -> Image.Image:
    shape = (height, width, 3) if channels == 3 else (height, width)
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8))


def plain(transform: ImageTransform) -> v2.Compose:
    """torchvision's own steps to a normalized tensor."""
    return v2.Compose(
        [v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(transform.mean, transform.std)]
    )


@pytest.mark.parametrize("channels", [1, 3])
def test_test_view_is_resize_and_centre_crop(channels: int) -> None:
    image = noise(40, 70, channels)
    for resize, resized, interpolation in ((None, 18, "bilinear"), (14, 14, "bicubic")):
        transform = ImageTransform(14, resize, interpolation=interpolation, channels=channels, fast=False)
        mode = v2.InterpolationMode(interpolation)
        expected = v2.Compose([v2.Resize(resized, mode), v2.CenterCrop(14), plain(transform)])
        torch.testing.assert_close(transform.test()(image), expected(image), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("size", [(1, 1), (3, 200), (48, 48), (300, 20)])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_image_comes_out_square_and_finite(size: tuple[int, int], channels: int) -> None:
    transform = ImageTransform(size=16, channels=channels, color_jitter=0.4, rotation=20.0)
    for view in (transform.train(), transform.test()):
        found = view(noise(*size, channels))
        assert (found.shape, found.dtype) == ((channels, 16, 16), torch.float32)
        assert found.isfinite().all()


def test_training_views_vary_with_the_seed_of_torch_alone() -> None:
    view = ImageTransform(size=16, color_jitter=0.4, rotation=20.0).train()
    image = noise(30, 40)
    torch.manual_seed(3)
    first, second = view(image), view(image)
    torch.manual_seed(3)
    np.random.seed(5)
    assert torch.equal(view(image), first)
    assert not torch.equal(first, second)


def test_flip_and_jitter_do_what_they_say() -> None:
    image = noise(16, 16)
    whole = {"size": 16, "resize": 16, "scale": (1.0, 1.0), "ratio": (1.0, 1.0)}
    flipped = ImageTransform(**whole, flip=1.0)  # type: ignore[arg-type]
    assert torch.equal(flipped.train()(image), flipped.test()(image).flip(-1))
    jittered = ImageTransform(**whole, flip=0.0, color_jitter=0.5)  # type: ignore[arg-type]
    assert not torch.equal(jittered.train()(image), jittered.test()(image))


@pytest.mark.parametrize("color", [255, (10, 200, 30)])
def test_rotation_leaves_no_black_corners(color: int | tuple[int, ...]) -> None:
    image = Image.new("L" if isinstance(color, int) else "RGB", (20, 30), color)
    image.paste(0, (8, 12, 12, 18))
    turned = np.asarray(RandomRotation(45, "bilinear")(image))
    assert (turned[0, 0] == color).all()
    assert (turned[-1, -1] == color).all()
    assert turned.shape == np.asarray(image).shape


def test_the_config_survives_json() -> None:
    transform = ImageTransform(size=48, scale=(0.5, 1.0), channels=1, interpolation="bilinear")
    again = ImageTransform.from_dict(json.loads(json.dumps(transform.to_dict())))
    assert again == replace(transform, resize=60)  # a later default does not change it
    assert again.mean == (0.449,)


def test_the_largest_images_are_not_resized_beyond_the_limit() -> None:
    for transform in (ImageTransform(4096), ImageTransform(224, 256).at_size(4000)):
        assert transform.shorter_side == 4096
        assert ImageTransform.from_dict(transform.to_dict()).shorter_side == 4096


def test_invalid_configs_name_the_key() -> None:
    for config, message in (
        ({"size": 0}, "size is 0; it must be an integer of pixels above 0"),
        ({"resize": 100}, r"resize is 100; it must be an integer of pixels, at least size \(224\)"),
        ({"scale": [0.0, 1.0]}, r"scale is \(0.0, 1.0\); it must be two numbers above 0 and at most 1"),
        ({"scale": [0.9, 0.2]}, "scale is"),
        ({"ratio": [1, float("inf")]}, "ratio is"),
        ({"flip": 1.5}, "flip is 1.5; it must be a number from 0 to 1"),
        ({"rotation": 270}, "rotation is 270; it must be a number from 0 to 180"),
        ({"interpolation": "lanczos"}, "interpolation is 'lanczos'; it must be bicubic, bilinear, nearest"),
        ({"channels": 4}, r"channels is 4; it must be 3 \(RGB\) or 1 \(grayscale\)"),
        ({"mean": [0.5]}, r"mean is \(0.5,\); it must be 3 number\(s\), one per channel"),
        ({"std": [0.2, 0.0, 0.2]}, "std is .* must be above 0"),
        ({"longest": 0}, "longest is 0; it must be an integer of pixels above 0, at most 16,384"),
        ({"longest": 32, "scale": [0.1, 1.0]}, r"scale is \(0.1, 1.0\); it must be left out with transform.longest"),
        ({"fast": "no"}, "fast is 'no'; it must be true or false"),
        ({"sizes": 3}, "unknown key 'sizes'; the keys are size, resize, longest, scale"),
    ):
        refused_call(f"^transform[.:] ?{message}", ImageTransform.from_dict, config)


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear", "nearest"])
@pytest.mark.parametrize("shape", [(3, 200), (200, 3), (1, 300), (17, 401), (60, 700), (700, 61)])
@pytest.mark.parametrize("resize", [32, 37])
def test_thin_images_are_resized_as_others(shape: tuple[int, int], interpolation: str, resize: int) -> None:
    transform = ImageTransform(size=32, resize=resize, interpolation=interpolation, mean=(0.0,) * 3, std=(1.0,) * 3)
    mode = v2.InterpolationMode(interpolation)
    expected = v2.Compose([v2.Resize(resize, mode), v2.CenterCrop(32), plain(transform)])
    image = noise(*shape)
    difference = (transform.test()(image) - expected(image)).abs() * 255
    if interpolation == "nearest":  # a row or column that lies half way goes to either side
        assert (difference > 0.5).float().mean() < 0.04
    else:  # PIL may take height or width first, and rounds and clips between
        assert difference.mean() < 0.3
        assert difference.max() < 8


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory by Linux's means")
@pytest.mark.parametrize("shape", [(1, 60_000), (60_000, 1), (3, 500_000)])
def test_very_thin_images_take_little_memory(shape: tuple[int, int]) -> None:
    image = Image.fromarray(np.full(shape, 128, dtype=np.uint8))
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 200_000_000, limits[1]))
    try:
        tensor = ImageTransform(channels=1, mean=(0.0,), std=(1.0,)).test()(image)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    torch.testing.assert_close(tensor, torch.full((1, 224, 224), 128 / 255))


@pytest.mark.parametrize(("resize", "expected"), [(None, (160, 200)), (256, (160, 183)), (224, (160, 160))])
def test_another_size_shows_the_same_part_of_an_image(resize: int | None, expected: tuple[int, int]) -> None:
    found = ImageTransform(224, resize, flip=0.0).at_size(160)
    assert (found.size, found.shorter_side, found.flip) == (*expected, 0.0)
