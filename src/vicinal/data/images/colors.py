"""The colors of images in memory: converted to sRGB by ICC profiles, and to 8-bit RGB or grayscale from any mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from io import BytesIO
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

Values: TypeAlias = npt.NDArray[Any]
Bytes: TypeAlias = npt.NDArray[np.uint8]
ToBytes: TypeAlias = Callable[[Values], Bytes]

MODES = {"RGB": "RGB", "RGBA": "RGBA", "CMYK": "RGB"}
"""Modes that are converted -> modes of the result."""
MAX_DIFFERENCE = 2  # of 255; profiles of sRGB by other programs differ by that much
STRIP_PIXELS = 2**20
WHITE_UINT16 = 65535
SHADES = 6  # of each channel, in the colors that are compared


def to_srgb(image: Image.Image) -> Image.Image:
    """Convert the colors of an image to sRGB, which networks are trained on, if its ICC profile is another.

    A profile that is damaged, or of other colors than the image, is ignored, as are those of grayscale images.
    """
    transform = profile_transform(image)
    if transform is None:
        return image
    from PIL import ImageCms

    converted = ImageCms.applyTransform(image, transform)
    assert converted is not None
    converted.info.pop("icc_profile", None)
    return converted


def profile_transform(image: Image.Image) -> Any:
    """The transform of an image's colors to sRGB; None if they are sRGB or no profile says otherwise."""
    profile = image.info.get("icc_profile")
    if not isinstance(profile, bytes) or not profile or image.mode not in MODES:
        return None
    return _transform(profile, image.mode)


@lru_cache(maxsize=32)
def _transform(profile: bytes, mode: str) -> Any:
    from PIL import ImageCms

    try:
        transform = ImageCms.buildTransform(
            ImageCms.getOpenProfile(BytesIO(profile)), ImageCms.createProfile("sRGB"), mode, MODES[mode],
            ImageCms.Intent.RELATIVE_COLORIMETRIC, ImageCms.Flags.BLACKPOINTCOMPENSATION,
        )  # fmt: skip
        return None if mode != "CMYK" and _changes_nothing(transform, mode) else transform
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):
        return None


def _changes_nothing(transform: Any, mode: str) -> bool:
    """Whether a transform leaves colors from all of RGB unchanged up to rounding."""
    from PIL import ImageCms

    shades = np.linspace(0, 255, SHADES).astype(np.uint8)
    colors = np.stack(np.meshgrid(shades, shades, shades), axis=-1).reshape(1, -1, 3)
    before = Image.fromarray(colors).convert(mode)
    after = ImageCms.applyTransform(before, transform)
    differences = np.asarray(before).astype(int) - np.asarray(after).astype(int)
    return bool(np.abs(differences).max() <= MAX_DIFFERENCE)


def convert_image(image: Image.Image, channels: int = 3) -> Image.Image:
    """Convert a PIL image of any mode to RGB or grayscale.

    Transparent images are put on a white background. White is 65,535 in 16-bit grayscale. Files do not state the range
    of 32-bit grayscale, so white is the smallest value that no pixel exceeds among 65,535 and 2^31 - 1 for integers, or
    among 1, 255, 65,535 and 2^32 - 1 for floating-point numbers.

    Args:
        image: An image of any mode that PIL can convert to RGB.
        channels: 3 for RGB, 1 for grayscale.

    Returns:
        An image of mode RGB or L; the same object if nothing has to be converted.

    Example:
        >>> convert_image(Image.new("LA", (1, 1), (0, 0))).getpixel((0, 0))
        (255, 255, 255)
    """
    mode = "L" if channels == 1 else "RGB"
    if image.mode.startswith("I;16"):
        image = _in_strips(image, _shades_of_16_bits(image))
    elif image.mode == "I":
        image = _in_strips(image, _scaling(image, (WHITE_UINT16, 2.0**31 - 1)))
    elif image.mode == "F":
        image = _in_strips(image, _scaling(image, (1.0, 255.0, WHITE_UINT16, 2.0**32 - 1)))
    elif image.mode == "La":  # PIL can convert premultiplied alpha to LA only
        image = _on_white(image.convert("LA"))
    elif image.has_transparency_data:
        image = _on_white(image)
    return image if image.mode == mode else image.convert(mode)


def _shades_of_16_bits(image: Image.Image) -> ToBytes:
    shades = np.rint(np.arange(WHITE_UINT16 + 1) * (255 / WHITE_UINT16)).astype(np.uint8)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        shades[transparent : transparent + 1] = 255
    return lambda values: shades[values]


def _scaling(image: Image.Image, whites: tuple[float, ...]) -> ToBytes:
    """The function from 32-bit values to 8 bits; white is the first of `whites` that no pixel exceeds."""
    largest = max((_numbers(np.asarray(strip), whites).max() for _, strip in _strips(image)), default=0.0)
    white = next((white for white in whites if largest <= white), largest)
    transparent = image.info.get("transparency")

    def scale(values: Values) -> Bytes:
        numbers = _numbers(values, whites)
        pixels = np.rint(numbers.clip(0, white) * (255 / white)).astype(np.uint8)
        pixels[numbers == transparent] = 255
        return pixels

    return scale


def _numbers(values: Values, whites: tuple[float, ...]) -> Values:
    return np.nan_to_num(values.astype(np.float64), posinf=whites[-1])


def _in_strips(image: Image.Image, to_bytes: ToBytes) -> Image.Image:
    """An image in grayscale of 8 bits. Strips of rows are converted in turn, so that copies stay small."""
    gray = Image.new("L", image.size)
    for top, strip in _strips(image):
        gray.paste(Image.fromarray(to_bytes(np.asarray(strip))), (0, top))
    return gray


def _strips(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    height = max(1, STRIP_PIXELS // max(1, image.width))
    for top in range(0, image.height, height):
        yield top, image.crop((0, top, image.width, min(top + height, image.height)))


def _on_white(image: Image.Image) -> Image.Image:
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
