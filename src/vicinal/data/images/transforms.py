"""The configuration of the transform from an image to the input of a network; it is saved with every model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from vicinal.utils.errors import InputError

if TYPE_CHECKING:
    from torch import nn

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
DEFAULT_SCALE, DEFAULT_RATIO = (0.5, 1.0), (3 / 4, 4 / 3)  # of training crops
DEFAULT_CENTER = 0.8  # of the shorter side, in tests

MAX_SIZE = 4_096
"""Largest side in pixels; then an image resized to it has at most 134 megapixels, whatever its aspect ratio."""
MAX_LONGEST = 16_384
"""Largest length of the longer side of whole images, which are never enlarged, in pixels."""


@dataclass(frozen=True)
class ImageTransform:
    """How images are cropped, augmented and normalized, in training and in tests.

    In training: random rotation, random resized crop, horizontal flip, color jitter. In tests: the shorter side is
    resized to `resize`, and the center is cropped. Both give a square of `size` pixels with values
    `(pixel / 255 - mean) / std`.

    With `longest`, images are neither cropped nor enlarged, in training and in tests: they keep their aspect ratio, and
    those whose longer side exceeds it are reduced (by Lanczos resampling, as in the protocol of ROxford and RParis).
    The other random changes of training remain; `size`, `resize` and `interpolation` are not used for the images. Those
    of a batch then differ in size, so that networks process them one by one.

    Args:
        size: side of the square, in pixels; at most 4,096.
        resize: length of the shorter side before the center crop in tests; `size / 0.8` if None.
        longest: largest length of the longer side of whole images, in pixels, at most 16,384; None: squares.
        scale: smallest and largest area of a training crop, as fractions of the image's area; None: 0.5 and 1.
            Not with `longest`.
        ratio: smallest and largest aspect ratio, width / height, of a training crop; None: 3 / 4 and 4 / 3. Not with
            `longest`.
        flip: probability of a horizontal flip in training.
        color_jitter: maximum change of brightness, contrast and saturation in training, as a fraction (0.4 is common).
        rotation: maximum angle of a random rotation in training, in degrees, in both directions.
        interpolation: `bicubic`, `bilinear` or `nearest`.
        fast: decode a JPEG at 1/2, 1/4 or 1/8 of its size where that leaves at least two pixels per side for each that
            is needed, and resize by torch. Whole images and `nearest` are left to Pillow; images to be rotated are
            decoded in full. False: every pixel is that of Pillow and torchvision. In tests, reduced JPEGs differ by
            less than 1 of 255 gray levels on average, by up to 3 if they are noise; other images by less than 0.05.
            Random crops of reduced JPEGs may also be moved by a quarter of a pixel.
        channels: 3 for RGB, 1 for grayscale.
        mean: mean of each channel; the default, ImageNet's, is replaced by its average if there is one channel.
        std: standard deviation of each channel, likewise.

    Raises:
        InputError: a value is invalid; the message names its key.

    Example:
        >>> from PIL import Image
        >>> transform = ImageTransform(size=32, channels=1, mean=(0.5,), std=(0.5,))
        >>> transform.test()(Image.new("L", (50, 40), 255)).unique()
        tensor([1.])
        >>> ImageTransform(flip=2)
        Traceback (most recent call last):
            ...
        vicinal.utils.errors.InputError: transform.flip is 2; it must be a number from 0 to 1
    """

    size: int = 224
    resize: int | None = None
    longest: int | None = None
    scale: tuple[float, float] | None = None
    ratio: tuple[float, float] | None = None
    flip: float = 0.5
    color_jitter: float = 0.0
    rotation: float = 0.0
    interpolation: Literal["bicubic", "bilinear", "nearest"] = "bicubic"
    fast: bool = True
    channels: Literal[1, 3] = 3
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def __post_init__(self) -> None:
        self._check("channels", self.channels in (1, 3), "3 (RGB) or 1 (grayscale)")
        if self.channels == 1 and (self.mean, self.std) == (IMAGENET_MEAN, IMAGENET_STD):
            object.__setattr__(self, "mean", (0.449,))
            object.__setattr__(self, "std", (0.226,))
        fits = _is_integer(self.size) and 0 < self.size <= MAX_SIZE
        self._check("size", fits, f"an integer of pixels above 0, at most {MAX_SIZE:,}")
        fits = self.resize is None or (_is_integer(self.resize) and self.size <= self.resize <= MAX_SIZE)
        self._check("resize", fits, f"an integer of pixels, at least size ({self.size}) and at most {MAX_SIZE:,}")
        fits = self.longest is None or (_is_integer(self.longest) and 0 < self.longest <= MAX_LONGEST)
        self._check("longest", fits, f"an integer of pixels above 0, at most {MAX_LONGEST:,}")
        for key, limit, expected in (("scale", 1, " and at most 1"), ("ratio", math.inf, "")):
            value = getattr(self, key)
            fits = value is None or _is_range(value, limit)
            self._check(key, fits, f"two numbers above 0{expected}, the smaller first")
            fits = value is None or self.longest is None
            self._check(key, fits, f"left out with transform.longest ({self.longest}), which keeps images whole")
        for key, limit in (("flip", 1), ("color_jitter", 1), ("rotation", 180)):
            value = getattr(self, key)
            self._check(key, _is_number(value) and 0 <= value <= limit, f"a number from 0 to {limit}")
        modes = ("bicubic", "bilinear", "nearest")
        self._check("interpolation", self.interpolation in modes, ", ".join(modes))
        self._check("fast", isinstance(self.fast, bool), "true or false")
        for key in ("mean", "std"):
            value = getattr(self, key)
            fits = isinstance(value, tuple) and len(value) == self.channels and all(map(_is_number, value))
            self._check(key, fits, f"{self.channels} number(s), one per channel")
        self._check("std", min(self.std) > 0, "above 0")

    def _check(self, key: str, holds: bool, expected: str) -> None:
        if not holds:
            raise InputError(f"transform.{key} is {getattr(self, key)!r}; it must be {expected}")

    @property
    def resizes_by_torch(self) -> bool:
        """Whether crops are resized by torch; whole images and nearest neighbors are left to Pillow."""
        return self.fast and self.longest is None and self.interpolation != "nearest"

    @property
    def shorter_side(self) -> int:
        """The length of the shorter side before the center crop in tests, in pixels."""
        return min(round(self.size / DEFAULT_CENTER), MAX_SIZE) if self.resize is None else self.resize

    def at_size(self, size: int) -> ImageTransform:
        """The transform to another size, in tests of the same part of an image."""
        resized = replace(self, size=size, resize=None)
        if self.resize is None:
            return resized
        return replace(resized, resize=min(max(size, round(self.resize * size / self.size)), MAX_SIZE))

    def train(self) -> nn.Sequential:
        """The transform for training: PIL image -> float32 `[channels, size, size]`, random by torch's generator.

        Of whole images it gives the pixels, uint8 `[channels, height, width]`, as large batches of them would not fit
        into memory otherwise; the embedder normalizes them.
        """
        from vicinal.data.images.image_ops import build_train_transform  # imports torchvision

        return build_train_transform(self)

    def test(self) -> nn.Sequential:
        """The transform for testing: PIL image -> float32 `[channels, size, size]`, or `[channels, height, width]`."""
        from vicinal.data.images.image_ops import build_test_transform  # imports torchvision

        return build_test_transform(self)

    def to_dict(self) -> dict[str, Any]:
        """The configuration as numbers, strings and lists, for JSON; a saved model keeps its part of the image."""
        values = {**asdict(self), "resize": self.shorter_side}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> ImageTransform:
        """Create the configuration from a result of :meth:`to_dict`.

        Raises:
            InputError: A key is unknown or a value is invalid.
        """
        known = [field.name for field in fields(cls)]
        for key in config:
            if key not in known:
                raise InputError(f"transform: unknown key {key!r}; the keys are {', '.join(known)}")
        values: dict[str, Any] = {key: tuple(each) if isinstance(each, list) else each for key, each in config.items()}
        return cls(**values)


# Numbers of Python only, since the configuration is saved as JSON.
def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_range(value: object, limit: float) -> bool:
    is_pair = isinstance(value, tuple) and len(value) == 2 and all(map(_is_number, value))
    return is_pair and 0 < value[0] <= value[1] <= limit  # type: ignore[index]
