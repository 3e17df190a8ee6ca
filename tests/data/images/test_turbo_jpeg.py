"""JPEGs that are decoded straight to an array have the pixels of Pillow."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vicinal.data.images.decoding import EncodedJpeg, decode_pixels, open_image

pytest.importorskip("simplejpeg")


def _photo(path: Path, width: int = 61, height: int = 43, mode: str = "RGB", **options: object) -> Path:
    noise = np.random.default_rng(0).integers(0, 256, (height // 2 + 1, width // 2 + 1, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((width, height)).convert(mode).save(path, quality=80, **options)
    return path


def _of_pillow(path: Path, channels: int, reduction: int) -> np.ndarray:
    with Image.open(path) as image:
        if reduction > 1:
            image.draft(image.mode, (max(1, image.width // reduction), max(1, image.height // reduction)))
        pixels = np.array(image.convert("RGB" if channels == 3 else "L"))
    return pixels.reshape(*pixels.shape[:2], channels)


@pytest.mark.parametrize("reduction", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("mode", "channels", "options"),
    [
        ("RGB", 3, {"subsampling": 0}),
        ("RGB", 3, {"subsampling": 1}),
        ("RGB", 3, {"subsampling": 2, "progressive": True}),
        ("L", 3, {}),
        ("L", 1, {}),
    ],
)
def test_pixels_are_those_of_pillow(tmp_path, mode, channels, options, reduction):
    path = _photo(tmp_path / "photo.jpg", mode=mode, **options)
    found = decode_pixels(path, (61, 43), mode, channels, reduction)
    assert found is not None
    assert np.array_equal(found, _of_pillow(path, channels, reduction))


def test_what_pillow_converts_otherwise_is_left_to_it(tmp_path):
    color, cmyk = _photo(tmp_path / "color.jpg"), _photo(tmp_path / "cmyk.jpg", mode="CMYK")
    assert decode_pixels(color, (61, 43), "RGB", 1, 1) is None
    assert decode_pixels(cmyk, (61, 43), "CMYK", 3, 1) is None
    damaged = tmp_path / "damaged.jpg"
    damaged.write_bytes(color.read_bytes()[:-400])
    assert decode_pixels(damaged, (61, 43), "RGB", 3, 1) is None


@pytest.mark.parametrize("orientation", [1, 3, 6])
@pytest.mark.parametrize("channels", [1, 3])
def test_pixels_of_a_file_do_not_depend_on_the_package(tmp_path, monkeypatch, orientation, channels):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = _photo(tmp_path / "photo.jpg", width=160, height=96, exif=exif)

    def pixels() -> np.ndarray:
        with open_image(path, channels) as image:
            assert isinstance(image, EncodedJpeg)
            return image.pixels(max_reduction=4.0)

    with_package = pixels()
    monkeypatch.setattr("vicinal.data.images.decoding._simplejpeg", lambda: None)
    assert np.array_equal(with_package, pixels())
    assert with_package.shape == ((40, 24) if orientation == 6 else (24, 40)) + (channels,)
