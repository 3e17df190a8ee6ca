"""Pixels of images whose JPEG files a GPU decodes, batch by batch: turned upright, cropped and resized there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from vicinal.data.batches.encoded_images import DevicePlan, EncodedImages
from vicinal.data.batches.image_dataset import ImageDataset
from vicinal.data.images.decoding import read_image
from vicinal.data.images.image_ops import ToPixels
from vicinal.data.images.nvjpeg import check_device_decoding, decode_jpegs
from vicinal.utils.errors import InputError

MAX_PIXELS_AT_ONCE = 2**27
"""Pixels of images that are decoded in one call, unless one image has more: 0.4 GB of RGB."""

TURNS = {2: (False, (-1,)), 3: (False, (-1, -2)), 4: (False, (-2,)), 5: (True, ()), 6: (True, (-1,)),
         7: (True, (-1, -2)), 8: (True, (-2,))}  # fmt: skip
"""Orientation of EXIF -> whether to transpose an image, and which of its axes to reverse then."""


class DeviceDecoder:
    """Makes the pixels of images that processes have read for a device.

    On a GPU it works in a stream of its own: torchvision decodes in a stream that does not wait for the kernels before
    it, and must not be given memory that one of them still reads.

    Args:
        dataset: The images.
        device: Where to decode.

    Raises:
        InputError: The device cannot decode JPEGs, or images are resized by Pillow.
    """

    def __init__(self, dataset: ImageDataset, device: str | torch.device) -> None:
        check_device_decoding(dataset.transform, device)
        self._dataset, self._device, self._transform = dataset, torch.device(device), dataset.transform
        self._stream: torch.cuda.Stream | None = _new_stream(self._device) if self._device.type == "cuda" else None

    def __call__(self, images: EncodedImages) -> tuple[Tensor, dict[int, str]]:
        """Decode images.

        Returns:
            The pixels of those that can be decoded, uint8 `[n, channels, size, size]` on the device; and the errors of
            the others by their rows.
        """
        if self._stream is None:
            return self._decode(images)
        self._stream.synchronize()  # of the batch before; what it read may be memory of this one
        with torch.cuda.stream(self._stream):
            pixels, errors = self._decode(images)
        current = torch.cuda.current_stream(self._device)
        current.wait_stream(self._stream)
        pixels.record_stream(current)
        return pixels, errors

    def _decode(self, images: EncodedImages) -> tuple[Tensor, dict[int, str]]:
        plans = images.listed_plans()
        jpegs = [plan for plan in plans if plan.num_bytes]
        made = list(self._squares(images.split_files(plans), jpegs))
        errors = {plan.row: str(each) for plan, each in zip(jpegs, made, strict=True) if isinstance(each, InputError)}
        squares = [each for each in made if isinstance(each, Tensor)]
        rounded = iter(torch.stack(squares).to(torch.uint8) if squares else ())
        pixels = images.pixels.to(self._device, non_blocking=True)
        others = iter(pixels)
        read = [next(rounded if plan.num_bytes else others) for plan in plans if plan.row not in errors]
        return torch.stack(read) if read else pixels, errors

    def _squares(self, files: Sequence[Tensor], plans: Sequence[DevicePlan]) -> Iterator[Tensor | InputError]:
        """The squares that are cut out of resized images, float32 `[channels, size, size]`, or why there is none."""
        size, mode = self._transform.size, self._transform.interpolation
        for some in _parts(plans):
            images = self._upright(files[some], plans[some])
            for plan, image in zip(plans[some], images, strict=True):
                yield image if isinstance(image, InputError) else _square(image, plan, size, mode)

    def _upright(self, files: Sequence[Tensor], plans: Sequence[DevicePlan]) -> list[Tensor | InputError]:
        """The images of files, uint8 `[channels, height, width]`; one by one, if one of them cannot be decoded."""
        try:
            images = decode_jpegs(files, self._transform.channels, self._device)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            if len(plans) > 1:
                parts = (slice(i, i + 1) for i in range(len(plans)))
                return [image for one in parts for image in self._upright(files[one], plans[one])]
            return [self._read(plans[0].row)]
        return [
            turned(image, plan.orientation) if _has_size(image, plan) else self._read(plan.row)
            for image, plan in zip(images, plans, strict=True)
        ]

    def _read(self, row: int) -> Tensor | InputError:
        """An image as it is read where no GPU decodes it, with the error that it has there, if it has one."""
        try:
            image = read_image(self._dataset.table.paths[row], self._transform.channels)
        except InputError as error:
            return error
        return ToPixels(self._transform.channels)(image).to(self._device)


def _new_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def turned(image: Tensor, orientation: int) -> Tensor:
    """An image `[channels, height, width]` turned upright.

    Example:
        >>> turned(torch.tensor([[[1, 2], [3, 4]]]), orientation=6).tolist()
        [[[3, 1], [4, 2]]]
    """
    is_transposed, reversed_axes = TURNS.get(orientation, (False, ()))
    image = image.mT if is_transposed else image
    return image.flip(reversed_axes) if reversed_axes else image


def _parts(plans: Sequence[DevicePlan]) -> Iterator[slice]:
    """Consecutive images that are decoded in one call."""
    start, total = 0, 0
    for number, plan in enumerate(plans):
        pixels = plan.stored_width * plan.stored_height
        if total + pixels > MAX_PIXELS_AT_ONCE and number > start:
            yield slice(start, number)
            start, total = number, 0
        total += pixels
    if plans:
        yield slice(start, len(plans))


def _has_size(image: Tensor, plan: DevicePlan) -> bool:
    return tuple(image.shape[1:]) == (plan.stored_height, plan.stored_width)


def _square(image: Tensor, plan: DevicePlan, size: int, interpolation: str) -> Tensor:
    """The square of an image; it is resized across and then down, rounded in between, as on a CPU."""
    part = image[None, :, plan.top : plan.bottom, plan.left : plan.right].float()
    for sides in ((part.shape[2], plan.width), (plan.height, plan.width)):
        part = _rounded(F.interpolate(part, size=sides, mode=interpolation, antialias=True))
    return part[0, :, plan.corner_top : plan.corner_top + size, plan.corner_left : plan.corner_left + size]


def _rounded(levels: Tensor) -> Tensor:
    return levels.round_().clamp_(0, 255)
