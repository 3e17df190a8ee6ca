"""Picture files of all kinds: modes, sizes, orientations and aspect ratios."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import ExifTags, Image

from tests.data.images.profiles import adobe_rgb

RNG = np.random.default_rng(0)


def save_pictures(folder: Path) -> list[Path]:
    """Save the pictures, and return their paths."""
    files = []

    def save(name: str, image: Image.Image, **options: object) -> None:
        image.save(folder / name, **options)
        files.append(folder / name)

    for orientation in range(1, 10):
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = orientation
        save(f"odd{orientation}.jpg", _picture(171, 125), exif=exif)
        save(f"even{orientation}.jpg", _picture(176, 128, smooth=False), exif=exif)
    for width, height in ((350, 250), (141, 129), (50, 35), (17, 16), (1, 1), (2, 50), (250, 25), (300, 26)):
        save(f"{width}.jpg", _picture(width, height))
        save(f"{width}.png", _picture(width, height, smooth=False))
        save(f"gray{width}.jpg", _picture(width, height, 1))
    small = _picture(90, 70)
    save("palette.png", small.convert("P"))
    save("palette_transparent.png", small.convert("P"), transparency=3)
    save("rgba.png", _picture(90, 70, 4))
    save("la.png", _picture(90, 70, 4).convert("LA"))
    save("gray_transparent.png", _picture(90, 70, 1), transparency=77)
    save("bits.png", small.convert("1"))
    save("cmyk.jpg", _picture(230, 170).convert("CMYK"))
    save("uint16.png", Image.fromarray(RNG.integers(0, 65536, (70, 90), dtype=np.uint16)))
    save("int32.tif", Image.fromarray(RNG.integers(0, 2**30, (70, 90), dtype=np.int32)))
    save("float32.tif", Image.fromarray(RNG.random((70, 90), dtype=np.float32)))
    for mode, name in (("RGB", "wide.png"), ("RGBA", "wide_rgba.png"), ("RGB", "wide.jpg"), ("CMYK", "wide_cmyk.jpg")):
        save(name, _picture(230, 170).convert(mode), icc_profile=adobe_rgb())
    save("still.webp", _picture(100, 150))
    save("still.gif", _picture(100, 150))
    return files


def _picture(width: int, height: int, channels: int = 3, smooth: bool = True) -> Image.Image:
    shape = (9, 12) if smooth else (height, width)
    values = RNG.integers(0, 256, (*shape, channels), dtype=np.uint8)
    return Image.fromarray(values.squeeze(axis=2) if channels == 1 else values).resize((width, height))
