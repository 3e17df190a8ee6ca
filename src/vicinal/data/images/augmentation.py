"""Flip and color jitter of a batch of images on any device, with the random numbers that were drawn image by image.

Processes that read images draw the random numbers of the transform for training, in its order, but leave it to the
device to change the pixels. A batch takes as many operations there as one image.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchvision.transforms import v2

from vicinal.data.images.image_ops import color_jitter
from vicinal.data.images.transforms import ImageTransform

TORCH_GRAY = (0.2989, 0.587, 0.114)
PILLOW_GRAY = (19595 / 2**16, 38470 / 2**16, 7471 / 2**16)
"""The weights of red, green and blue in a gray level, as torchvision has them for tensors, and as Pillow has them."""

IDENTITY, GRAY, MEAN = (0.0, 0.0), (1.0, 0.0), (0.0, 1.0)


class AugmentationSampler:
    """Draws the flip and the color jitter of one image after the other, by torch's generator.

    It draws what the transform for training would draw, after the crop: the same numbers in the same order.
    """

    def __init__(self, transform: ImageTransform) -> None:
        self.flip = transform.flip
        self.jitter = color_jitter(transform) if transform.color_jitter else None

    def draw(self) -> Tensor:
        """The parameters of one image for :func:`augment`.

        Returns:
            float32: 1 or 0, whether the image is flipped, if there is a flip. Then four numbers for each change of the
            jitter, in their random order: the factor; 1 minus the factor; and, 1 or 0 each, whether the pixels are
            mixed with their own gray level, and whether with the mean gray level of the image.
        """
        numbers = [float(torch.rand(1) < self.flip)] if self.flip else []
        return torch.tensor([*numbers, *(self._draw_jitter(self.jitter) if self.jitter else ())])

    def _draw_jitter(self, jitter: v2.ColorJitter) -> list[float]:
        drawn = jitter.make_params([])
        changes = [
            (drawn["brightness_factor"], IDENTITY),
            (drawn["contrast_factor"], MEAN),
            (drawn["saturation_factor"], GRAY),
            (None, IDENTITY),  # hue
        ]
        in_order = [changes[number] for number in drawn["fn_idx"].tolist()]
        return [each for factor, mixed in in_order if factor is not None for each in (factor, 1 - factor, *mixed)]


def create_sampler(transform: ImageTransform) -> AugmentationSampler | None:
    """The sampler of a transform; None if it neither flips images nor changes their colors."""
    return AugmentationSampler(transform) if transform.flip or transform.color_jitter else None


def augment(pixels: Tensor, parameters: Tensor, transform: ImageTransform) -> Tensor:
    """Flip images, uint8 `[n, channels, height, width]`, and change their colors, as the transform does on the CPU.

    Rounding is that of the transform: of Pillow, or of torchvision's operations on tensors with `transform.fast`. With
    Pillow's, the result is the same to the last bit wherever it is computed; with torchvision's it is so on a CPU whose
    operations are fused as there, and else differs by at most 2 of 255 gray levels in one of 1,000 values. The
    parameters, float32 `[n, parameters]`, are those of :meth:`AugmentationSampler.draw`.
    """
    columns = list(parameters[:, :, None, None, None].unbind(1))  # [n, 1, 1, 1] each
    if transform.flip:
        pixels = torch.where(columns.pop(0) > 0, pixels.flip(-1), pixels)
    if not columns:
        return pixels
    change, levels = _torch_change if transform.resizes_by_torch else _pillow_change, pixels.float()
    for first in range(0, len(columns), 4):
        levels = change(levels, *columns[first : first + 4]).clamp_(0, 255).floor_()
    return levels.to(torch.uint8)


def _torch_change(levels: Tensor, factor: Tensor, rest: Tensor, of_gray: Tensor, of_mean: Tensor) -> Tensor:
    """One change of all images, float32 `[n, channels, height, width]`, in the arithmetic of torchvision's tensors."""
    gray = _gray(levels, TORCH_GRAY).floor()
    mixed = torch.addcmul(gray.mean(dim=(1, 2, 3), keepdim=True) * of_mean, gray, of_gray)
    return torch.addcmul(levels * factor, mixed, rest)


def _pillow_change(levels: Tensor, factor: Tensor, rest: Tensor, of_gray: Tensor, of_mean: Tensor) -> Tensor:
    """One change of all images, float32 `[n, channels, height, width]`, in the arithmetic of Pillow."""
    gray = (_gray(levels, PILLOW_GRAY) + 0.5).floor_()  # exact: the weights are multiples of 2^-16
    number = gray[0].numel()
    total = gray.sum(dim=(1, 2, 3), keepdim=True, dtype=torch.int64)  # of a large image too much for float32
    mixed = torch.addcmul((total + number // 2) // number * of_mean, gray, of_gray)
    return (levels - mixed).mul_(factor).add_(mixed)


def _gray(levels: Tensor, weights: tuple[float, float, float]) -> Tensor:
    if levels.shape[1] == 1:
        return levels
    red, green, blue = levels.chunk(3, dim=1)
    return (red * weights[0]).add_(green, alpha=weights[1]).add_(blue, alpha=weights[2])
