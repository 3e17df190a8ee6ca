"""Conversion to sRGB of images with another ICC profile, such as wide-gamut photos."""

from __future__ import annotations

from functools import lru_cache
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

MODES = {"RGB": "RGB", "RGBA": "RGBA", "CMYK": "RGB"}
"""The modes that are converted, and to which."""
MAX_DIFFERENCE = 2  # of 255, by which sRGB as another program writes it differs
SHADES = 6  # of each color, of the colors that are compared


def to_srgb(image: Image.Image) -> Image.Image:
    """Convert the colors of an image to sRGB, which networks are trained on, if its ICC profile is another.

    A profile that is damaged, or of other colors than the image, is ignored, as are those of grayscale images.

    Example:
        >>> image = Image.new("RGB", (1, 1), "red")
        >>> to_srgb(image) is image
        True
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
    """Whether a transform leaves colors from all of RGB as they are, but for rounding."""
    from PIL import ImageCms

    shades = np.linspace(0, 255, SHADES).astype(np.uint8)
    colors = np.stack(np.meshgrid(shades, shades, shades), axis=-1).reshape(1, -1, 3)
    before = Image.fromarray(colors).convert(mode)
    after = ImageCms.applyTransform(before, transform)
    differences = np.asarray(before).astype(int) - np.asarray(after).astype(int)
    return bool(np.abs(differences).max() <= MAX_DIFFERENCE)
