"""From an image to what a network takes: one small typed config that is saved with every model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import nn
from torchvision.transforms import v2

from vicinal.errors import InputError

# Images up to so many times longer than wide are resized whole, as torchvision does.
THIN = 8

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class ImageTransform:
    """How images are cropped, varied and normalised, in training and after it.

    In training: rotation, random resized crop, flip, colour jitter. In tests: the shorter side resized to `resize`,
    then the centre. Both give a square of `size` pixels, scaled to 0-1, less `mean`, divided by `std`.

    Args:
        size: side of the square, in pixels.
        resize: length of the shorter side before the centre is cut out in tests; `size / 0.875` if None.
        scale: least and greatest share of the image's area that a training crop covers.
        ratio: least and greatest width / height of a training crop.
        flip: probability of a left-right flip in training.
        color_jitter: up to how much brightness, contrast and saturation change in training, as a share (0.4 is common).
        rotation: up to how many degrees images are turned in training, either way.
        interpolation: `bicubic`, `bilinear` or `nearest`.
        channels: 3 for RGB, 1 for grey.
        mean: of each channel; the default, ImageNet's, becomes its average when there is one channel.
        std: of each channel, likewise.

    Raises:
        InputError: an impossible value, with its key.

    Example:
        >>> transform = ImageTransform(size=32, channels=1, mean=(0.5,), std=(0.5,))
        >>> transform.test()(Image.new("L", (50, 40), 255)).unique()
        tensor([1.])
        >>> ImageTransform(flip=2)
        Traceback (most recent call last):
            ...
        vicinal.errors.InputError: transform.flip is 2; it must be a number from 0 to 1
    """

    size: int = 224
    resize: int | None = None
    scale: tuple[float, float] = (0.2, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    color_jitter: float = 0.0
    rotation: float = 0.0
    interpolation: Literal["bicubic", "bilinear", "nearest"] = "bicubic"
    channels: Literal[1, 3] = 3
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def __post_init__(self) -> None:
        _require(self.channels in (1, 3), "channels", self.channels, "3 (RGB) or 1 (grey)")
        if self.channels == 1 and (self.mean, self.std) == (IMAGENET_MEAN, IMAGENET_STD):
            object.__setattr__(self, "mean", (0.449,))
            object.__setattr__(self, "std", (0.226,))
        _require(_is_whole(self.size) and self.size > 0, "size", self.size, "a whole number of pixels above 0")
        fits = self.resize is None or (_is_whole(self.resize) and self.resize >= self.size)
        _require(fits, "resize", self.resize, f"a whole number of pixels, at least size ({self.size})")
        _require(_is_range(self.scale, 1), "scale", self.scale, "two numbers above 0 and at most 1, the smaller first")
        _require(_is_range(self.ratio, math.inf), "ratio", self.ratio, "two numbers above 0, the smaller first")
        for key, most in (("flip", 1), ("color_jitter", 1), ("rotation", 180)):
            value = getattr(self, key)
            _require(_is_number(value) and 0 <= value <= most, key, value, f"a number from 0 to {most}")
        kinds = ("bicubic", "bilinear", "nearest")
        _require(self.interpolation in kinds, "interpolation", self.interpolation, ", ".join(kinds))
        for key in ("mean", "std"):
            value = getattr(self, key)
            fits = isinstance(value, tuple) and len(value) == self.channels and all(map(_is_number, value))
            _require(fits, key, value, f"{self.channels} number(s), one a channel")
        _require(min(self.std) > 0, "std", self.std, "above 0")

    def train(self) -> nn.Module:
        """The varied view for training: PIL image -> float32 `[channels, size, size]`; randomness is torch's own."""
        return v2.Compose([*self._variation(), NormalizedTensor(self.channels, self.mean, self.std)])

    def test(self) -> nn.Module:
        """The plain view for everything after training: PIL image -> float32 `[channels, size, size]`."""
        side = round(self.size / 0.875) if self.resize is None else self.resize
        return v2.Compose(
            [ResizedCentre(side, self.size, self._mode), NormalizedTensor(self.channels, self.mean, self.std)]
        )

    @property
    def _mode(self) -> v2.InterpolationMode:
        return v2.InterpolationMode(self.interpolation)

    def _variation(self) -> list[nn.Module]:
        steps: list[nn.Module] = [
            v2.RandomResizedCrop(self.size, self.scale, self.ratio, interpolation=self._mode),
        ]
        if self.rotation:
            steps.insert(0, RandomRotation(self.rotation, self.interpolation))
        if self.flip:
            steps.append(v2.RandomHorizontalFlip(self.flip))
        if self.color_jitter:
            saturation = self.color_jitter if self.channels == 3 else 0.0
            steps.append(v2.ColorJitter(self.color_jitter, self.color_jitter, saturation))
        return steps

    def to_dict(self) -> dict[str, Any]:
        """The config as numbers, texts and lists, ready for JSON."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> ImageTransform:
        """The config that :meth:`to_dict` gave.

        Raises:
            InputError: an unknown key, or an impossible value.
        """
        known = [field.name for field in fields(cls)]
        for key in config:
            if key not in known:
                raise InputError(f"transform: unknown key {key!r}; the keys are {', '.join(known)}")
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in config.items()
        }
        return cls(**values)


def _require(holds: bool, key: str, value: object, right: str) -> None:
    if not holds:
        raise InputError(f"transform.{key} is {value!r}; it must be {right}")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_range(value: object, most: float) -> bool:
    pair = isinstance(value, tuple) and len(value) == 2 and all(map(_is_number, value))
    return pair and 0 < value[0] <= value[1] <= most  # type: ignore[index]


class NormalizedTensor(nn.Module):
    """PIL image -> float32 `[channels, height, width]`: pixels / 255, less the mean, divided by the standard deviation.

    Two operations; torchvision's three transforms for it take longer than the crop of a small image.
    """

    def __init__(self, channels: int, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
        super().__init__()
        self.channels = channels
        self.mean = 255 * torch.tensor(mean, dtype=torch.float32).view(-1, 1, 1)
        self.std = 255 * torch.tensor(std, dtype=torch.float32).view(-1, 1, 1)

    def forward(self, image: Image.Image) -> torch.Tensor:
        pixels = torch.from_numpy(np.array(image)).view(image.height, image.width, self.channels)
        return (pixels.permute(2, 0, 1).contiguous() - self.mean).div_(self.std)


class ResizedCentre(nn.Module):
    """Resize the shorter side to `side` and cut out the centre, a square of `size`.

    Of a thin image only what the centre comes from is resized, or one of 1 x 60,000 pixels would take gigabytes.
    """

    def __init__(self, side: int, size: int, interpolation: v2.InterpolationMode) -> None:
        super().__init__()
        self.side, self.size = side, size
        self.whole = nn.Sequential(v2.Resize(side, interpolation=interpolation), v2.CenterCrop(size))
        self.resample = Image.Resampling[interpolation.name]

    def forward(self, image: Image.Image) -> Image.Image:
        if max(image.size) <= THIN * min(image.size):
            resized: Image.Image = self.whole(image)
            return resized
        # PIL holds the box in float32, too coarse for so long a side, so whole pixels around it are cut out first.
        (left, right, x0, x1), (top, bottom, y0, y1) = (self._span(length, min(image.size)) for length in image.size)
        around = image.crop((left, top, right, bottom))
        return around.resize((self.size, self.size), self.resample, (x0 - left, y0 - top, x1 - left, y1 - top))

    def _span(self, length: int, shorter: int) -> tuple[int, int, float, float]:
        """Along one side of the image: the pixels that the centre is interpolated from, and where exactly it lies."""
        resized = int(self.side * length / shorter)
        scale = length / resized
        first = round((resized - self.size) / 2) * scale
        last = min(first + self.size * scale, length)
        reach = 2 * max(scale, 1.0)  # of bicubic interpolation, the widest
        return max(math.floor(first - reach), 0), min(math.ceil(last + reach), length), first, last


class RandomRotation(nn.Module):
    """Turn an image about its centre by a random angle; corners take the mean colour of its border, not black."""

    def __init__(self, degrees: float, interpolation: str) -> None:
        super().__init__()
        self.degrees = degrees
        self.resample = Image.Resampling[interpolation.upper()]

    def forward(self, image: Image.Image) -> Image.Image:
        angle = float(torch.empty(()).uniform_(-self.degrees, self.degrees))
        pixels = np.asarray(image)
        border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
        corner = tuple(np.rint(border.mean(axis=0, keepdims=border.ndim == 1)).astype(int).tolist())
        return image.rotate(angle, self.resample, fillcolor=corner)
