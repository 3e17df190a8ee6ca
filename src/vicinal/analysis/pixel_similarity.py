"""How alike the pixels of images are, also if one is a part of the other, compared by small gray thumbnails."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from vicinal.utils.arrays import Floats, Integers

CROP_SIDES = (30, 28, 26)  # of 32: what is left of an image that was cropped, by up to a third of its area
MIN_CORRELATION = 0.2  # of whole thumbnails, below which none is a part of the other
CHUNK_SIZE = 512  # pairs at a time: some 200 MB
EPSILON = 1e-6

Thumbnails = npt.NDArray[np.uint8]


def pixel_similarities(
    thumbnails: Thumbnails, first: Integers, second: Integers, sides: Sequence[int] = CROP_SIDES
) -> Floats:
    """Compute the largest correlation of two images, whole with whole or whole with a part of the other.

    It is the normalized cross-correlation of gray values, which neither brightness nor contrast changes. One image,
    reduced, is moved over the other: it is near 1 for images that were encoded anew, resized, or cropped by up to a
    fifth of each side. Pairs whose whole thumbnails are correlated by less than 0.2 are not compared in parts.

    Args:
        thumbnails: uint8 [images, side, side], as of :func:`image_facts`.
        first: int64 [pairs], an image of each pair.
        second: int64 [pairs], the other.
        sides: to which side lengths one of the thumbnails is reduced before it is moved over the other.

    Returns:
        float32 [pairs], from -1 to 1; 0 for an image of one gray value.

    Example:
        >>> images = np.random.default_rng(0).integers(0, 256, (3, 32, 32)).astype(np.uint8)
        >>> images[2] = images[0] // 2 + 50
        >>> pixel_similarities(images, np.array([0, 0]), np.array([1, 2])).round(1).tolist()
        [0.0, 1.0]
    """
    similarities = np.empty(len(first), dtype=np.float32)
    for start in range(0, len(first), CHUNK_SIZE):
        chunk = slice(start, start + CHUNK_SIZE)
        one, other = (torch.from_numpy(thumbnails[rows[chunk]]).float() for rows in (first, second))
        best = (_standardized(one.flatten(1)) * _standardized(other.flatten(1))).sum(dim=1)
        near = best > MIN_CORRELATION
        for side in sides:
            for part, whole in ((one[near], other[near]), (other[near], one[near])):
                best[near] = torch.maximum(best[near], _best_place(part, whole, side))
        similarities[chunk] = best.numpy()
    return similarities


def _best_place(parts: Tensor, wholes: Tensor, side: int) -> Tensor:
    """The largest correlation of each part, reduced to a side length, with a window of its whole; float32 [pairs]."""
    if not len(parts):
        return torch.empty(0)
    reduced = F.interpolate(parts[:, None], size=(side, side), mode="area").flatten(1)
    windows = F.unfold(wholes[:, None], side).transpose(1, 2)
    return (_standardized(windows) @ _standardized(reduced)[:, :, None]).amax(dim=(1, 2))


def _standardized(values: Tensor) -> Tensor:
    """Vectors of mean 0 and length 1."""
    centered = values - values.mean(dim=-1, keepdim=True)
    return centered / centered.norm(dim=-1, keepdim=True).clamp_min(EPSILON)
