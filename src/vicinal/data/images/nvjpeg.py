"""JPEGs decoded by a GPU: what nvJPEG can decode, whether it is there, and the one call that decodes a batch."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vicinal.utils.errors import InputError, one_line

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from vicinal.data.images.transforms import ImageTransform

SAMPLINGS = {(1, 1), (2, 1), (2, 2), (1, 2), (4, 1), (4, 2)}
"""How many pixels, across and down, may share their color: 4:4:4, 4:2:2, 4:2:0, 4:4:0, 4:1:1 and 4:1:0."""
RGB_NAMES = tuple(b"RGB")  # of the components of files that hold RGB, where no marker says so
END, NUM_END_BYTES = b"\xff\xd9", 32
NEEDS_TORCH = (
    "transform.fast must be true, transform.longest (--max_size) null and transform.interpolation bicubic or bilinear"
)


def is_supported(image: Any) -> bool:
    """Whether nvJPEG decodes an open file to the image that libjpeg makes of it, but for the rounding of its colors.

    It does with 8 bits per channel, in grayscale or YCbCr with the usual subsampling, baseline and progressive. Others
    are left to the CPU: CMYK, RGB that is stored as such, several pictures in one file.

    Args:
        image: A JPEG as Pillow opened it.
    """
    if image.format != "JPEG" or image.bits != 8:
        return False
    names, across, down, _ = zip(*image.layer, strict=True)
    if len(names) == 1:
        return True
    is_ycbcr = len(names) == 3 and image.info.get("adobe_transform", 1) == 1 and names != RGB_NAMES
    return is_ycbcr and (across[0], down[0]) in SAMPLINGS and {*across[1:], *down[1:]} == {1}


def is_complete(content: bytes) -> bool:
    """Whether a file ends as a JPEG does, so that it was not cut off, about which nvJPEG may say nothing.

    One with other data after the image is left to the CPU too.
    """
    return END in content[-NUM_END_BYTES:]


def decode_jpegs(files: Sequence[Tensor], channels: int, device: torch.device) -> list[Tensor]:
    """Decode JPEGs, as they are stored, without turning them upright.

    Args:
        files: Their contents, uint8 `[bytes]` each, on the CPU.
        channels: 3 for RGB, 1 for grayscale.
        device: A GPU; on a CPU libjpeg decodes, for tests.

    Returns:
        uint8 `[channels, height, width]` each, on the device.

    Raises:
        RuntimeError: One of them cannot be decoded; it is not said which.
    """
    from torchvision.io import ImageReadMode, decode_jpeg

    mode = ImageReadMode.RGB if channels == 3 else ImageReadMode.GRAY
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated since torchvision 0.29, for TorchCodec, which is no dependency
        images: list[Tensor] = decode_jpeg(list(files), mode, device)
    return images


def check_device_decoding(transform: ImageTransform, device: str | torch.device, setting: str = "decoding") -> None:
    """Check that JPEGs can be decoded on a device, for a transform of images.

    Args:
        transform: The transform.
        device: The device.
        setting: The name of the setting that asks for it, for the message: `data.decoding` in a recipe.

    Raises:
        InputError: It is no CUDA device, torchvision was built without nvJPEG, or images are resized by Pillow.
    """
    check_resized_by_torch(transform, setting)
    check_nvjpeg(device, setting)


def check_resized_by_torch(transform: ImageTransform, setting: str = "decoding") -> None:
    """Raise InputError if images are resized by Pillow, which no device does."""
    if not transform.resizes_by_torch:
        raise _error(setting, f" and resizes by torch: {NEEDS_TORCH}")


def check_nvjpeg(device: str | torch.device, setting: str = "decoding") -> None:
    """Check that a device decodes JPEGs, by one of a few pixels.

    Raises:
        InputError: It is no CUDA device, or torchvision was built without nvJPEG.
    """
    import torch
    from PIL import Image

    if torch.device(device).type != "cuda":
        raise _error(setting, f", which needs a CUDA GPU, not {device}")
    buffer = io.BytesIO()
    Image.new("RGB", (16, 16)).save(buffer, "JPEG")
    try:
        decode_jpegs([torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)], 3, torch.device(device))
    except (RuntimeError, AttributeError, ImportError) as error:
        raise _error(setting, f", which fails here ({one_line(error, 120)})") from None


def _error(setting: str, problem: str) -> InputError:
    """The error that a device cannot decode JPEGs here, and what to do."""
    instead = f"give --{setting} workers, which decode on the CPU, with slightly other pixels"
    return InputError(f"{setting} = device decodes JPEGs by nvJPEG{problem}; {instead}")
