"""From image files of every kind to upright 8-bit RGB or grey images."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from vicinal.errors import InputError


def read_image(path: str | Path, channels: int = 3) -> Image.Image:
    """Read an image file, turned upright as its EXIF data say.

    Palettes, 1-bit, 16-bit, 32-bit, transparent and CMYK images are converted as :func:`convert_image` does; of an
    animation the first picture is read.

    Args:
        path: the file.
        channels: 3 for RGB, 1 for grey.

    Returns:
        An image of mode RGB or L, decoded.

    Raises:
        InputError: no such file, not an image, broken, or so large that it must be a mistake or an attack (above about
            179 million pixels; told from the header, before any memory is taken).

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("1", (4, 2)).save(f"{folder}/black.png")
        ...     image = read_image(f"{folder}/black.png")
        >>> image.mode, image.size
        ('RGB', (4, 2))
    """
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe would be waited for without end
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
    except Exception as error:  # decoders raise whatever a broken file drives them to
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"{path}: broken image ({reason})") from None


def _upright(image: Image.Image) -> Image.Image:
    try:
        ImageOps.exif_transpose(image, in_place=True)
    except Exception:  # the picture is sound though what is written about it is not
        return image
    return image


def convert_image(image: Image.Image, channels: int = 3) -> Image.Image:
    """Bring a PIL image of any mode to RGB or grey.

    What is transparent lies on white. White in 16-bit grey is 65,535. The range of 32-bit grey is stated in no file, so
    white is the smallest of 65,535 and 2^31 - 1 (whole numbers) or of 1, 255, 65,535 and 2^32 - 1 (fractions) that no
    pixel exceeds.

    Args:
        image: of any mode that PIL can turn into RGB.
        channels: 3 for RGB, 1 for grey.

    Returns:
        An image of mode RGB or L: the same one if nothing is to be done.

    Example:
        >>> convert_image(Image.new("LA", (1, 1), (0, 0))).getpixel((0, 0))
        (255, 255, 255)
    """
    mode = "L" if channels == 1 else "RGB"
    if image.mode.startswith("I;16"):
        image = _eight_bit(image, (65535.0,))
    elif image.mode == "I":
        image = _eight_bit(image, (65535.0, 2.0**31 - 1))
    elif image.mode == "F":
        image = _eight_bit(image, (1.0, 255.0, 65535.0, 2.0**32 - 1))
    elif image.mode == "La":  # PIL knows but one way from there
        image = _on_white(image.convert("LA"))
    elif image.has_transparency_data:
        image = _on_white(image)
    return image if image.mode == mode else image.convert(mode)


def _eight_bit(image: Image.Image, whites: tuple[float, ...]) -> Image.Image:
    values = np.nan_to_num(np.asarray(image, dtype=np.float64), posinf=whites[-1])
    largest = values.max(initial=0.0)
    white = next((white for white in whites if largest <= white), largest)
    grey = np.rint(values.clip(0, white) * (255 / white)).astype(np.uint8)
    grey[values == image.info.get("transparency")] = 255
    return Image.fromarray(grey)


def _on_white(image: Image.Image) -> Image.Image:
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
