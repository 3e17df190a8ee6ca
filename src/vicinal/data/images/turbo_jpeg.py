"""JPEGs decoded to an array by the package simplejpeg, where it is installed: the pixels of Pillow, in half the time.

Both call libjpeg-turbo, but Pillow keeps four bytes per pixel and copies them once more to make an array.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt

COLORSPACES = {("RGB", 3): "RGB", ("L", 3): "RGB", ("L", 1): "GRAY"}
"""Mode of the image in Pillow and number of channels -> what is asked of the decoder.

Others are left to Pillow: CMYK, whose inks may be inverted, and color as gray, of which Pillow takes another average.
"""


def decode_pixels(
    path: str | Path, size: tuple[int, int], mode: str, channels: int, reduction: int
) -> npt.NDArray[np.uint8] | None:
    """Decode a JPEG, as it is stored, without turning it upright.

    Args:
        path: the file.
        size: its width and height, as its header has them.
        mode: the mode that Pillow has for it.
        channels: 3 for RGB, 1 for grayscale.
        reduction: what the sides are divided by, rounded up: 1, 2, 4 or 8.

    Returns:
        uint8 `[height, width, channels]`, the pixels that Pillow gives; None without simplejpeg, for a kind of image
        that is left to Pillow, and for a damaged file, about which Pillow has the better message.
    """
    simplejpeg, colorspace = _simplejpeg(), COLORSPACES.get((mode, channels))
    if simplejpeg is None or colorspace is None:
        return None
    width, height = (-(-side // reduction) for side in size)
    try:
        pixels: npt.NDArray[np.uint8] = simplejpeg.decode_jpeg(
            Path(path).read_bytes(), colorspace, min_height=height, min_width=width
        )
    except ValueError:  # of strict decoding, which also refuses what Pillow would only warn of
        return None
    return pixels if pixels.shape == (height, width, channels) else None


@cache
def _simplejpeg() -> ModuleType | None:
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg
