import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import ExifTags, Image

from tests.refusals import refused_call
from vicinal.data import ImageDataset, ImageTransform, Table, TrainBatches, read_image
from vicinal.data.batches.image_dataset import PixelBatches, all_readable
from vicinal.data.images import decoding
from vicinal.data.images.decoding import EncodedJpeg, decode_pixels, open_image
from vicinal.data.images.image_ops import resized_crop
from vicinal.utils.errors import InputError
from vicinal.utils.seeds import seeded

GRAY_LEVELS = ImageTransform(size=64, resize=73, mean=(0.0,) * 3, std=(1 / 255,) * 3)
UNREDUCED, SMALL, LARGE = (100, 75), (403, 301), (1207, 901)  # reduced by 1, by 2 and by 4 in tests


def smooth(width: int, height: int) -> Image.Image:
    colors = np.random.default_rng(0).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    return Image.fromarray(colors).resize((width, height), Image.Resampling.BICUBIC)


def texture(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def edges(width: int, height: int) -> Image.Image:
    """Black and white checks, eight across: nothing differs more from its neighbors."""
    y, x = np.mgrid[:height, :width]
    checks = (8 * y // height + 8 * x // width) % 2 * 255
    return Image.fromarray(checks.astype(np.uint8)).convert("RGB")


def jpeg(folder: Path, image: Image.Image, **options: object) -> str:
    image.save(folder / "a.jpg", quality=90, **options)  # type: ignore[arg-type]
    return str(folder / "a.jpg")


def differences(path: str, transform: ImageTransform, view: str, seed: int = 0) -> torch.Tensor:
    """In gray levels, between the fast path and the exact one with the same random numbers."""
    results = []
    for each in (transform, replace(transform, fast=False)):
        with seeded(seed), open_image(path, transform.channels) as image:
            results.append((getattr(each, view)()(image), torch.rand(2)))
    (fast, rest), (exact, exact_rest) = results
    assert torch.equal(rest, exact_rest)  # as many random numbers were drawn
    return (fast - exact).abs()


@contextmanager
def decoded_sizes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[int, int]]]:
    sizes: list[tuple[int, int]] = []
    decode = EncodedJpeg.decode

    def record(jpeg: EncodedJpeg, max_reduction: float = 1.0) -> Image.Image:
        image = decode(jpeg, max_reduction)
        sizes.append(image.size)
        return image

    def record_pixels(*arguments: Any) -> Any:
        pixels = decode_pixels(*arguments)
        if pixels is not None:
            sizes.append((pixels.shape[1], pixels.shape[0]))
        return pixels

    with monkeypatch.context() as patch:
        patch.setattr(EncodedJpeg, "decode", record)
        patch.setattr("vicinal.data.images.decoding.decode_pixels", record_pixels)
        yield sizes


@pytest.mark.parametrize(
    ("kind", "mean", "largest", "train_mean", "train_largest"),
    [(smooth, 0.3, 3, 0.7, 6), (texture, 3.0, 16, 3.0, 30), (edges, 1.0, 20, 5.0, 80)],
)
@pytest.mark.parametrize("size", [SMALL, LARGE, LARGE[::-1]])
def test_reduced_images_differ_by_little(
    tmp_path: Path, kind, mean: float, largest: int, train_mean: float, train_largest: int, size: tuple[int, int]
) -> None:
    path = jpeg(tmp_path, kind(*size))
    found = differences(path, GRAY_LEVELS, "test")
    assert 0 < found.mean() < mean
    assert found.max() <= largest
    trained = torch.stack([differences(path, GRAY_LEVELS, "train", seed) for seed in range(8)])
    assert 0 < trained.mean() < train_mean  # another crop or flip differs by dozens of levels
    assert trained.max() <= train_largest


@pytest.mark.parametrize("view", ["train", "test"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_in_full_size_differ_by_rounding(tmp_path: Path, view: str, interpolation: str, channels: int) -> None:
    levels = {"mean": (0.0,) * channels, "std": (1 / 255,) * channels}
    transform = ImageTransform(64, interpolation=interpolation, channels=channels, **levels)  # type: ignore[arg-type]
    for kind in (smooth, texture):
        found = differences(jpeg(tmp_path, kind(*UNREDUCED)), transform, view)
        assert found.mean() < 0.02
        assert found.max() <= 2.001  # between the two directions, Pillow rounds as well


def test_a_jpeg_is_decoded_as_small_as_leaves_twice_the_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = jpeg(tmp_path, smooth(*LARGE))
    whole = {"scale": (1.0, 1.0), "ratio": (1207 / 901, 1207 / 901)}
    for transform, view, expected in (
        (GRAY_LEVELS, "test", (302, 226)),  # 901 / 4 > 2 * 73
        (ImageTransform(size=64, **whole), "train", (302, 226)),  # type: ignore[arg-type]
        (ImageTransform(size=32), "test", (151, 113)),
        (ImageTransform(size=224), "test", LARGE),
        (replace(GRAY_LEVELS, interpolation="nearest"), "test", LARGE),
        (replace(GRAY_LEVELS, rotation=5.0), "train", LARGE),
        (replace(GRAY_LEVELS, longest=64), "test", LARGE),
        (replace(GRAY_LEVELS, fast=False), "test", LARGE),
    ):
        with decoded_sizes(monkeypatch) as sizes, open_image(path) as image:
            getattr(transform, view)()(image)
        assert sizes == [expected], transform


@pytest.mark.parametrize("options", [{"progressive": True}, {"subsampling": 0}, {"mode": "L"}, {"mode": "CMYK"}])
def test_all_kinds_of_jpeg(tmp_path: Path, options: dict[str, object]) -> None:
    image = smooth(*LARGE).convert(str(options.pop("mode", "RGB")))
    found = differences(jpeg(tmp_path, image, **options), GRAY_LEVELS, "test")
    assert found.mean() < 0.5
    assert found.max() <= 4


@pytest.mark.parametrize("orientation", range(1, 10))
@pytest.mark.parametrize("size", [LARGE, (1208, 904), (1208, 902)])
def test_reduced_images_are_upright(tmp_path: Path, orientation: int, size: tuple[int, int], monkeypatch) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    path = jpeg(tmp_path, edges(*size), exif=exif)
    with decoded_sizes(monkeypatch) as sizes:
        assert differences(path, GRAY_LEVELS, "test").mean() < 1
        assert differences(path, replace(GRAY_LEVELS, scale=(0.2, 1.0)), "train").mean() < 4
    fast, exact, *_ = sizes
    assert exact == (size[::-1] if orientation in (5, 6, 7, 8) else size)
    turned = 1 < orientation < 9
    assert max(exact) / max(fast) == pytest.approx({LARGE: 1, (1208, 902): 2}.get(size, 4) if turned else 4, rel=0.01)


def test_tiny_and_odd_sizes_are_resized_as_others(tmp_path: Path) -> None:
    for width in (*range(1, 41), 49, 127, 129):
        path = jpeg(tmp_path, texture(4, 3).resize((width, width + 1), Image.Resampling.BICUBIC), subsampling=0)
        whole = read_image(path)
        for size, left in itertools.product((1, 2, 3, 7, 15), (0, width // 3, width - 1)):
            box = (left, 0, width, width + 1)
            with open_image(path) as image:
                found = resized_crop(image, box, (size, size + 1), "bilinear")
            assert found.shape == (3, size + 1, size), (width, size, left)
            expected = np.asarray(whole.crop(box).resize((size, size + 1), Image.Resampling.BILINEAR), dtype=int)
            assert np.abs(found.permute(1, 2, 0).numpy() - expected).max() < (45 if left else 15), (width, size, left)


def test_the_exact_path_is_that_of_the_decoded_image(tmp_path: Path) -> None:
    path = jpeg(tmp_path, texture(*LARGE))
    transform = replace(GRAY_LEVELS, fast=False)
    pixels, _ = PixelBatches(ImageDataset(Table(pd.DataFrame({"path": [path]})), transform), [[0]])[0]
    assert torch.equal(pixels[0], transform.test()(read_image(path)))


def test_color_jitter_is_the_same_to_a_few_levels(tmp_path: Path) -> None:
    transform = replace(GRAY_LEVELS, color_jitter=0.4)
    path = jpeg(tmp_path, smooth(*UNREDUCED))
    found = torch.stack([differences(path, transform, "train", seed) for seed in range(8)])
    assert found.mean() < 1
    assert found.max() <= 4


def test_several_pictures_in_one_jpeg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smooth(*LARGE).save(tmp_path / "a.mpo", save_all=True, append_images=[texture(*LARGE)])
    with decoded_sizes(monkeypatch) as sizes:
        assert differences(str(tmp_path / "a.mpo"), GRAY_LEVELS, "test").max() <= 4
    assert sizes == [(302, 226), LARGE]


def test_reduced_crops_have_no_black_border(tmp_path: Path) -> None:
    path = jpeg(tmp_path, Image.new("RGB", (131, 131), "white"))
    for start in range(60):
        with open_image(path) as image:
            assert resized_crop(image, (start, start, 131, 131), (8, 8), "bilinear").min() == 255, start


def test_images_of_other_formats_are_resized_as_they_are(tmp_path: Path) -> None:
    texture(*SMALL).save(tmp_path / "a.png")
    assert differences(str(tmp_path / "a.png"), GRAY_LEVELS, "test").max() <= 2.001


def test_damaged_and_huge_jpegs_are_named_with_their_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(jpeg(tmp_path, texture(*LARGE)))
    dataset = ImageDataset(Table(pd.DataFrame({"path": [str(path)], "label": [0]})), GRAY_LEVELS)
    batches = [lambda: all_readable(PixelBatches(dataset, [[0]])[0]), lambda: TrainBatches(dataset, [[0]], (0,))[0]]
    with monkeypatch.context() as patch:
        patch.setattr(decoding, "MAX_PIXELS", 1207 * 901 - 1)
        for batch in batches:
            refused_call(rf"^row 0: {path}: image too large \(1,207 x 901 pixels", batch)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    for batch in batches:
        refused_call(rf"^row 0: {path}: broken image \(.*\)$", batch)
    with pytest.raises(InputError, match=r"none of the 1 images can be read; row 0: .*broken image"):
        ImageDataset(dataset.table, GRAY_LEVELS, on_error="skip")


def test_damaged_jpegs_are_read_or_refused_as_pillow_does(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    path = Path(jpeg(tmp_path, texture(*UNREDUCED)))
    whole, outcomes = path.read_bytes(), set()
    for number in range(60):
        damaged = bytearray(whole[: rng.integers(1, len(whole))] if number % 3 == 0 else whole)
        for position in rng.integers(0, len(damaged), 3):
            damaged[position] = rng.integers(256)
        path.write_bytes(damaged)
        results = []
        for fast in (True, False):
            try:
                with open_image(path) as image:
                    results.append(replace(GRAY_LEVELS, fast=fast).test()(image))
            except InputError as error:
                results.append(str(error))
        outcomes.add(type(results[0]))
        if isinstance(results[0], str):
            assert results[0] == results[1]
        else:
            assert (results[0] - results[1]).abs().max() < 9, number
    assert outcomes == {str, torch.Tensor}
