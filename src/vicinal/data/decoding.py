"""Decoding image files of all kinds to upright 8-bit RGB or grayscale images."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from vicinal.utils.errors import InputError, one_line

WHITE_UINT16 = 65535.0


def read_image(path: str | Path, channels: int = 3) -> Image.Image:
    """Read an image file and rotate it upright according to its EXIF data.

    Images with palettes, with 1, 16 or 32 bits per channel, transparent images and CMYK images are converted as by
    :func:`convert_image`; of an animation the first frame is read.

    Args:
        path: The file.
        channels: 3 for RGB, 1 for grayscale.

    Returns:
        A decoded image of mode RGB or L.

    Raises:
        InputError: The file does not exist, is not an image, is damaged, or has more than about 179 million pixels,
            which is taken for a mistake or an attack; the header tells, before memory is allocated.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("1", (4, 2)).save(f"{folder}/black.png")
        ...     image = read_image(f"{folder}/black.png")
        >>> image.mode, image.size
        ('RGB', (4, 2))
    """
    if os.path.exists(path) and not os.path.isfile(path):  # reading a pipe might not end
        raise InputError(f"{path}: not a file but a directory or a pipe")
    try:
        with Image.open(path) as image:
            image.load()
            return convert_image(_upright(image), channels)
    except FileNotFoundError:
        raise InputError(f"{path}: no such image") from None
    except UnidentifiedImageError:
        raise InputError(f"{path}: not an image of a known kind") from None
    except Image.DecompressionBombError as error:
        raise InputError(f"{path}: image too large ({error})") from None
    except Exception as error:  # decoders raise many types of errors on damaged files
        raise InputError(f"{path}: broken image ({one_line(error)})") from None


def _upright(image: Image.Image) -> Image.Image:
    try:
        ImageOps.exif_transpose(image, in_place=True)
    except Exception:  # the pixels are valid even if the EXIF data are not
        return image
    return image


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
        image = _to_8_bit(image, (WHITE_UINT16,))
    elif image.mode == "I":
        image = _to_8_bit(image, (WHITE_UINT16, 2.0**31 - 1))
    elif image.mode == "F":
        image = _to_8_bit(image, (1.0, 255.0, WHITE_UINT16, 2.0**32 - 1))
    elif image.mode == "La":  # PIL can convert premultiplied alpha to LA only
        image = _on_white(image.convert("LA"))
    elif image.has_transparency_data:
        image = _on_white(image)
    return image if image.mode == mode else image.convert(mode)


def _to_8_bit(image: Image.Image, whites: tuple[float, ...]) -> Image.Image:
    values = np.nan_to_num(np.asarray(image, dtype=np.float64), posinf=whites[-1])
    largest = values.max(initial=0.0)
    white = next((white for white in whites if largest <= white), largest)
    pixels = np.rint(values.clip(0, white) * (255 / white)).astype(np.uint8)
    pixels[values == image.info.get("transparency")] = 255
    return Image.fromarray(pixels)


def _on_white(image: Image.Image) -> Image.Image:
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
