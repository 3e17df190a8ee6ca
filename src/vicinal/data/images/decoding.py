"""Decoding image files of all kinds to upright 8-bit RGB or grayscale images."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, ImageFile, ImageOps, UnidentifiedImageError

from vicinal.data.columns import Box
from vicinal.data.images.colors import Bytes, convert_image, profile_transform, to_srgb
from vicinal.data.images.formats import HEIF_NEEDS, CountedFile, register_heif
from vicinal.utils.errors import InputError, one_line, raise_if_of_system, unreadable
from vicinal.utils.files import check_regular_file

COLORSPACES = {("RGB", 3): "RGB", ("L", 3): "RGB", ("L", 1): "GRAY"}
"""Mode of the image in Pillow and number of channels -> pixel format of the decoder.

Others are left to Pillow: CMYK, whose inks may be inverted, and color as gray, of which Pillow takes another average.
"""
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "TGA", "JPEG2000", "AVIF")
"""The formats that are opened. Pillow knows others, some of which run programs, such as Ghostscript for EPS."""
MAX_PIXELS = 128_000_000  # half a gigabyte; phones take up to 108 million in one picture
HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
REDUCTIONS = (8, 4, 2)  # divisors of the sides that JPEG decoders support
TURNED = range(2, 9)  # orientations of EXIF other than upright
SIDEWAYS = range(5, 9)  # those that swap width and height


def decode_pixels(
    path: str | Path, size: tuple[int, int], mode: str, channels: int, reduction: int
) -> npt.NDArray[np.uint8] | None:
    """Decode a JPEG, as it is stored, without turning it upright: the pixels that Pillow gives, uint8.

    They are `[height, width, channels]`, with sides divided by `reduction` (1, 2, 4 or 8) and rounded up. None without
    simplejpeg, for a kind of image that is left to Pillow, and for a damaged file, about which Pillow has the better
    message. Size and mode are those that Pillow has for the file.
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
    except OSError as error:
        raise unreadable(path, error) from None
    return pixels if pixels.shape == (height, width, channels) else None


@cache
def _simplejpeg() -> ModuleType | None:
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg


# Pillow warns above 89 million pixels; here MAX_PIXELS holds, which is an error.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


def read_image(path: str | Path, channels: int = 3) -> Image.Image:
    """Read an image file, rotate it upright according to its EXIF data, and convert it to sRGB by its ICC profile.

    The formats are JPEG, PNG, WebP, BMP, GIF, TIFF, PPM, TGA, JPEG 2000 and AVIF, whatever the name of the file says,
    and HEIC if the package pillow-heif is installed (`pip install 'vicinal[heif]'`).
    Images with palettes, with 1, 16 or 32 bits per channel, transparent images and CMYK images are converted as by
    :func:`convert_image`; of an animation the first frame is read.

    Args:
        path: The file.
        channels: 3 for RGB, 1 for grayscale.

    Returns:
        A decoded image of mode RGB or L.

    Raises:
        InputError: The file does not exist, is not an image of these formats, is damaged, or has more than 128 million
            pixels, which the header tells before memory is allocated.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("1", (4, 2)).save(f"{folder}/black.png")
        ...     image = read_image(f"{folder}/black.png")
        >>> image.mode, image.size
        ('RGB', (4, 2))
    """
    with open_image(path, channels) as image:
        return decoded(image)


@contextmanager
def open_image(path: str | Path, channels: int = 3) -> Iterator[Image.Image | EncodedJpeg]:
    """Open an image file as :func:`read_image` reads it, but leave a JPEG to be decoded, perhaps at a smaller size."""
    check_regular_file(path)
    with ExitStack() as stack:
        with _one_line_errors(path):
            file = stack.enter_context(CountedFile(path))
            image = stack.enter_context(Image.open(file, formats=known_formats()))
        _check_size(path, image.width, image.height)
        yield (EncodedJpeg if image.format in ("JPEG", "MPO") else _decode)(image, path, channels)


class EncodedJpeg:
    """A JPEG file that is open and not decoded yet; it can be decoded once.

    The box is the left, top, right and bottom edge of a part of it, in pixels, upright; `size` is that of the part.
    """

    def __init__(
        self, image: ImageFile.ImageFile, path: str | Path, channels: int, box: tuple[int, int, int, int] | None = None
    ) -> None:
        self._image, self._path, self._channels, self._box = image, path, channels, box
        self._orientation = _orientation(image)

    @property
    def size(self) -> tuple[int, int]:
        if self._box is not None:
            return self._box[2] - self._box[0], self._box[3] - self._box[1]
        width, height = self._image.size
        return (height, width) if self._orientation in SIDEWAYS else (width, height)

    def crop(self, box: tuple[int, int, int, int]) -> EncodedJpeg:
        """A part of the image, which is decoded in full size."""
        return EncodedJpeg(self._image, self._path, self._channels, box)

    def decode(self, max_reduction: float = 1.0) -> Image.Image:
        """Decode the file to an image of mode RGB or L, upright.

        The sides are divided by 8, 4, 2 or 1, at most by `max_reduction`, and rounded up: a decoder reduces blocks of 8
        x 8 pixels by leaving out their high frequencies, in a fraction of the time. In an image that has to be turned
        or mirrored, the rounding would shift the left or upper edge, so its sides are multiples of the divisor.
        """
        image, reduction = self._image, self._reduction(max_reduction)
        if reduction > 1:
            image.draft(image.mode, (max(1, image.width // reduction), max(1, image.height // reduction)))
        upright = _decode(image, self._path, self._channels)
        return upright if self._box is None else upright.crop(self._box)

    def pixels(self, max_reduction: float = 1.0) -> Bytes:
        """Decode the file as :meth:`decode` does: the pixels of the image, uint8 `[height, width, channels]`."""
        image = self._image
        if self._orientation == 1 and self._box is None and self._is_srgb:
            reduction = self._reduction(max_reduction)
            pixels = decode_pixels(self._path, image.size, image.mode, self._channels, reduction)
            if pixels is not None:
                return pixels
        pixels = np.array(self.decode(max_reduction))
        return pixels.reshape(*pixels.shape[:2], self._channels)

    @property
    def _is_srgb(self) -> bool:
        return "icc_profile" not in self._image.info or profile_transform(self._image) is None

    def _reduction(self, max_reduction: float) -> int:
        if self._box is not None:
            return 1
        width, height = self._image.size
        is_turned = self._orientation != 1
        fits = (each for each in REDUCTIONS if not (is_turned and (width % each or height % each)))
        return next((each for each in fits if each <= max_reduction), 1)


def decoded(image: Image.Image | EncodedJpeg, max_reduction: float = 1.0) -> Image.Image:
    """An image of :func:`open_image` with its pixels; only a JPEG is reduced, as by :meth:`EncodedJpeg.decode`."""
    return image if isinstance(image, Image.Image) else image.decode(max_reduction)


def _decode(image: Image.Image, path: str | Path, channels: int) -> Image.Image:
    with _one_line_errors(path):
        image.load()
        return convert_image(to_srgb(_upright(image)), channels)


@contextmanager
def _one_line_errors(path: str | Path) -> Iterator[None]:
    try:
        yield
    except UnidentifiedImageError:
        raise InputError(f"{path}: {_unknown_format(path)}") from None
    except Image.DecompressionBombError as error:
        pixels = int(next(iter(re.findall(r"[0-9]+", str(error))), 2 * MAX_PIXELS))
        raise _too_large(path, f"{pixels / 1e6:,.0f} million pixels") from None
    except Exception as error:  # decoders raise many types of errors on damaged files
        raise_if_of_system(error, path)
        raise InputError(f"{path}: broken image ({one_line(error)})") from None


@cache
def known_formats() -> list[str]:
    """The formats of Pillow that are read."""
    Image.init()
    return [name for name in (*FORMATS, *register_heif()) if name in Image.OPEN]


def _check_size(path: str | Path, width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise _too_large(path, f"{width:,} x {height:,} pixels are {width * height / 1e6:,.0f} million")


def _too_large(path: str | Path, size: str) -> InputError:
    return InputError(f"{path}: image too large ({size}, at most {MAX_PIXELS / 1e6:.0f} million are read); reduce it")


def _unknown_format(path: str | Path) -> str:
    """Why a file is not read if its content has none of the formats in FORMATS."""
    with open(path, "rb") as file:
        start = file.read(16)
    if not start:
        return "not an image: the file is empty"
    if start[4:8] == b"ftyp" and start[8:12] in HEIC_BRANDS:
        return HEIF_NEEDS
    return f"not an image of a known format ({', '.join(FORMATS)})"


def _orientation(image: Image.Image) -> int:
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation)
    except Exception:  # as _upright, which then leaves the image as it is
        return 1
    return int(orientation) if orientation in TURNED else 1  # type: ignore[arg-type]  # which is a number then


def _upright(image: Image.Image) -> Image.Image:
    try:
        ImageOps.exif_transpose(image, in_place=True)
    except Exception:  # the pixels are valid even if the EXIF data are not
        return image
    return image


def thumbnail(path: str, box: Box | None, size: int) -> Image.Image:
    """The image of a file, or the part of it in a box, in at most `size` x `size` pixels; smaller ones stay as they
    are.
    """
    with open_image(path) as image:
        reduction = 1.0 if box is not None else max(image.size) / (2 * size)  # the rest is resized smoothly
        picture = crop_to_box(decoded(image, reduction), box, path)
    picture.thumbnail((size, size))
    return picture


AnyImage = TypeVar("AnyImage", Image.Image, Image.Image | EncodedJpeg)


def crop_to_box(image: AnyImage, box: Box | None, path: object) -> AnyImage:
    """The part of an upright image within a bounding box; pixels that are partly inside belong to it."""
    if box is None:
        return image
    width, height = image.size
    edges = np.clip(box, 0, [width, height, width, height])  # before they are rounded: they may be infinite
    if not (edges[0] < edges[2] and edges[1] < edges[3]):  # NaN neither
        given = ", ".join(f"{edge:g}" for edge in box)
        raise InputError(f"{path}: the bounding box {given} lies outside of the image, {width} x {height}")
    left, top, right, bottom = edges.tolist()
    return image.crop((math.floor(left), math.floor(top), math.ceil(right), math.ceil(bottom)))
