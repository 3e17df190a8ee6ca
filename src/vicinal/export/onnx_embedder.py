"""Embeddings by an exported model, with ONNX Runtime or OpenVINO, numpy and Pillow only.

This file needs nothing else of Vicinal and may be copied into another project, beside the exported files. It reads and
resizes images to exactly the pixels that :meth:`vicinal.Embedder.embed` gives to its network.
"""

from __future__ import annotations

import functools
import io
import json
import math
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from PIL import ExifTags, Image, ImageCms, ImageOps

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "TGA", "JPEG2000", "AVIF", "HEIF")
"""The formats that are opened; HEIF only if the package pillow-heif was registered."""
MAX_ASPECT_RATIO = 8  # images with a larger one are cropped before they are resized
MAX_DIM, MAX_SIDE = 2**20, 2**14
WHITES = {"I": (65535.0, 2.0**31 - 1), "F": (1.0, 255.0, 65535.0, 2.0**32 - 1)}


class OnnxEmbedder:
    """Embeds images by a model that `vicinal export` wrote.

    Args:
        path: The file `NAME.onnx`; beside it is `NAME.preprocessing.json`.
        options: Arguments of `onnxruntime.InferenceSession`, such as `providers` or `sess_options`; by default it runs
            on the CPU.

    Attributes:
        preprocessing: The content of `NAME.preprocessing.json`.
        dim: Dimension of the embeddings.
        fingerprint: Identifies the model that was exported.

    Raises:
        ValueError: A file is missing or damaged, the two are not of one export, or the preprocessing is invalid.
    """

    def __init__(self, path: str | os.PathLike[str], **options: Any) -> None:
        self.path = Path(path)
        beside = self.path.with_suffix(".preprocessing.json")
        for file in (self.path, beside):
            if not file.is_file():
                raise ValueError(f"{file}: no such file; an exported model needs {self.path.name} and {beside.name}")
        try:
            self.preprocessing: dict[str, Any] = json.loads(beside.read_text(encoding="utf-8"))
            invalid = next((key for key, is_valid in VALID.items() if not is_valid(self.preprocessing, key)), None)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            invalid = "its content"
        if invalid is not None:
            raise ValueError(f"{beside}: {invalid} is invalid; copy it with {self.path.name} from one export")
        self.dim, self.fingerprint = self.preprocessing["dim"], self.preprocessing["fingerprint"]
        if self._start(options) != self.fingerprint:
            raise ValueError(f"{beside}: of another model than {self.path.name}; copy both files of one export")

    def _start(self, options: dict[str, Any]) -> str | None:
        """Load the model, and return the fingerprint in it."""
        import onnxruntime

        options = {"providers": ["CPUExecutionProvider"], **options}
        self._session: Any = onnxruntime.InferenceSession(str(self.path), **options)
        fingerprint: str | None = self._session.get_modelmeta().custom_metadata_map.get("fingerprint")
        return fingerprint

    def infer(self, inputs: np.ndarray) -> np.ndarray:
        """Embed inputs of the exported model, as its `input` and `layout` say: float32 [n, dim]."""
        vectors: np.ndarray = self._session.run(None, {self._session.get_inputs()[0].name: inputs})[0]
        return vectors

    def embed(
        self, images: Sequence[str | os.PathLike[str]] | Sequence[Image.Image], batch_size: int = 64
    ) -> np.ndarray:
        """Embed files or PIL images: float32 [n, dim], L2-normalized, in their order.

        Raises:
            ValueError: An image cannot be read.
        """
        batch_size = 1 if self.preprocessing["longest"] else batch_size  # whole images differ in size
        vectors = [np.empty((0, self.dim), np.float32)]
        for start in range(0, len(images), batch_size):
            vectors.append(self.run(np.stack([self.pixels(image) for image in images[start : start + batch_size]])))
        return np.concatenate(vectors)

    def run(self, pixels: np.ndarray) -> np.ndarray:
        """Embed pixels, uint8 [n, channels, height, width]: float32 [n, dim]. It may be called by several threads.

        Raises:
            ValueError: The model fails, or gives something else than a unit vector for each image.
        """
        inputs = pixels
        if self.preprocessing["input"] == "tensor":
            mean, std = (255 * np.float32(self.preprocessing[name])[:, None, None] for name in ("mean", "std"))
            inputs = (pixels - mean) / std
        if self.preprocessing["layout"] == "nhwc":
            inputs = inputs.transpose(0, 2, 3, 1)
        try:
            vectors = self.infer(np.ascontiguousarray(inputs))
        except Exception as error:  # runtimes raise errors of their own
            reason = " ".join(str(error).split())[:300]
            raise ValueError(f"{self.path}: fails for {inputs.dtype} {list(inputs.shape)} ({reason})") from error
        if vectors.shape != (len(pixels), self.dim) or vectors.dtype != np.float32:
            found = f"{vectors.dtype} {list(vectors.shape)}"
            raise ValueError(f"{self.path}: gives {found}; it must be float32 {[len(pixels), self.dim]}")
        lengths = np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64))
        if not (np.abs(lengths - 1) <= 0.01).all(where=lengths != 0):
            raise ValueError(f"{self.path}: gives vectors that are not of length 1; export the model again")
        return vectors

    def pixels(self, image: str | os.PathLike[str] | Image.Image) -> np.ndarray:
        """Read, resize and crop an image: uint8 [channels, size, size], or [channels, height, width] of whole images.

        Raises:
            ValueError: It cannot be read.
        """
        name = "an image" if isinstance(image, Image.Image) else os.fspath(image)
        try:
            if isinstance(image, Image.Image):
                cropped = self._crop(ImageOps.exif_transpose(image), image_size(image))
            else:
                Image.init()  # fills Image.OPEN
                with Image.open(image, formats=[each for each in FORMATS if each in Image.OPEN]) as file:
                    cropped = self._crop(file, image_size(file))
        except Exception as error:  # decoders raise many types of errors on damaged files
            raise ValueError(f"{name}: cannot be read ({' '.join(str(error).split())})") from error
        return np.ascontiguousarray(cropped.transpose(2, 0, 1))

    def _crop(self, image: Image.Image, full_size: tuple[int, int]) -> np.ndarray:
        """The pixels of an open image, [height, width, channels]; `full_size` is its upright width and height."""
        config, (width, height) = self.preprocessing, full_size
        shorter, channels = min(width, height), config["channels"]
        is_thin = max(width, height) > MAX_ASPECT_RATIO * shorter
        if config["longest"]:
            whole = decoded(image, channels).copy()
            whole.thumbnail((config["longest"], config["longest"]), Image.Resampling.LANCZOS)
            return as_array(whole)
        resize, size, mode = config["resize"], config["size"], config["interpolation"]
        if is_thin:
            return as_array(crop_thin(decoded(image, channels), resize, size, Image.Resampling[mode.upper()]))
        if not config["fast"] or mode == "nearest":
            sides = (int(resize * width / shorter), int(resize * height / shorter))
            resized = decoded(image, channels).resize(sides, Image.Resampling[mode.upper()])
            return as_array(resized)[center(sides[1], size), center(sides[0], size)]
        sides = (resize * width // shorter, resize * height // shorter)
        reduce_jpeg(image, min(width / sides[0], height / sides[1]) / 2)
        pixels = as_array(decoded(image, channels))
        reduction = 2 ** round(math.log2(max(full_size) / max(pixels.shape[:2])))
        for axis, side in ((1, 0), (0, 1)):  # columns first, as torch does
            factor = math.nextafter(sides[side] * reduction / full_size[side], math.inf)
            pixels = np.moveaxis(resample(np.moveaxis(pixels, axis, 0), factor, size, mode), 0, axis)
        return pixels


def is_one_of(*choices: Any) -> Callable[[dict[str, Any], str], bool]:
    """A check that a value is one of the choices, and of the same type."""
    return lambda values, key: any(type(values[key]) is type(each) and values[key] == each for each in choices)


def is_side(low: int, high: int) -> Callable[[dict[str, Any], str], bool]:
    """A check that a value is an integer within limits."""
    return lambda values, key: type(values[key]) is int and low <= values[key] <= high


def is_text(values: dict[str, Any], key: str) -> bool:
    """Whether a value is text."""
    return isinstance(values[key], str)


def are_numbers(values: dict[str, Any], key: str) -> bool:
    """Whether a value is a list of a finite number for each channel; standard deviations are above 0."""
    low = 0 if key == "std" else -math.inf
    return len(values[key]) == values["channels"] and all(low < float(each) < math.inf for each in values[key])


VALID: dict[str, Callable[[dict[str, Any], str], bool]] = {
    "format": is_one_of("vicinal-preprocessing"),
    "version": is_one_of(1),
    "fingerprint": is_text,
    "backbone": is_text,
    "dim": is_side(1, MAX_DIM),
    "input": is_one_of("pixels", "tensor"),
    "layout": is_one_of("nchw", "nhwc"),
    "channels": is_one_of(1, 3),
    "size": is_side(1, MAX_SIDE),
    "resize": lambda values, key: is_side(values["size"], MAX_SIDE)(values, key),
    "longest": lambda values, key: values[key] is None or is_side(1, MAX_SIDE)(values, key),
    "interpolation": is_one_of("nearest", "bilinear", "bicubic"),
    "fast": is_one_of(False, True),
    "mean": are_numbers,
    "std": are_numbers,
}
"""The check of each value of a preprocessing file."""


def orientation(image: Image.Image) -> int:
    """The orientation in the EXIF data of an image, 1 to 8, where 1 is upright."""
    with suppress(Exception):  # the pixels are valid even if the EXIF data are not
        return image.getexif().get(ExifTags.Base.Orientation, 1)
    return 1


def image_size(image: Image.Image) -> tuple[int, int]:
    """Width and height of an image after it was turned upright."""
    return image.size[::-1] if orientation(image) in range(5, 9) else image.size


def reduce_jpeg(image: Image.Image, max_reduction: float) -> None:
    """Have a JPEG decoded at 1/8, 1/4 or 1/2 of its size, as far as `max_reduction` allows."""
    if image.format in ("JPEG", "MPO"):
        is_turned = orientation(image) in range(2, 9)
        for divisor in (8, 4, 2):
            if divisor <= max_reduction and not (is_turned and any(side % divisor for side in image.size)):
                image.draft(image.mode, (max(1, image.width // divisor), max(1, image.height // divisor)))
                break


def decoded(image: Image.Image, channels: int) -> Image.Image:
    """An upright image of mode RGB or L; transparent images are put on white, and white of 16 and 32 bits is 255."""
    image.load()
    with suppress(Exception):
        ImageOps.exif_transpose(image, in_place=True)
    image = to_srgb(image)
    if image.mode in WHITES or image.mode.startswith("I;16"):
        image = to_8_bits(image)
    elif image.mode == "La" or image.has_transparency_data:
        image = image.convert("LA").convert("RGBA") if image.mode == "La" else image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    mode = "L" if channels == 1 else "RGB"
    return image if image.mode == mode else image.convert(mode)


def to_srgb(image: Image.Image) -> Image.Image:
    """An image in the colors of sRGB; a profile that is damaged, or changes colors by 2 of 255 at most, is ignored."""
    profile, mode = image.info.get("icc_profile"), "RGBA" if image.mode == "RGBA" else "RGB"
    if not profile or image.mode not in ("RGB", "RGBA", "CMYK"):
        return image
    with suppress(ImageCms.PyCMSError, OSError, ValueError, TypeError):
        transform = ImageCms.buildTransform(
            ImageCms.getOpenProfile(io.BytesIO(profile)), ImageCms.createProfile("sRGB"), image.mode, mode,
            ImageCms.Intent.RELATIVE_COLORIMETRIC, ImageCms.Flags.BLACKPOINTCOMPENSATION,
        )  # fmt: skip
        shades = np.linspace(0, 255, 6).astype(np.uint8)
        colors = np.stack(np.meshgrid(shades, shades, shades), axis=-1).reshape(1, -1, 3)
        before = Image.fromarray(colors).convert(image.mode)
        after = np.asarray(ImageCms.applyTransform(before, transform)).astype(int)
        if image.mode == "CMYK" or np.abs(after - np.asarray(before)).max() > 2:
            return ImageCms.applyTransform(image, transform) or image
    return image


def to_8_bits(image: Image.Image) -> Image.Image:
    """Grayscale of 16 or 32 bits in 8 bits; white is the first of `WHITES` that no pixel exceeds."""
    whites = WHITES.get(image.mode, (65535.0,))
    values = np.nan_to_num(np.asarray(image).astype(np.float64), posinf=whites[-1])
    white = next((white for white in whites if values.max() <= white), values.max())
    pixels = np.rint(values.clip(0, white) * (255 / white)).astype(np.uint8)
    transparent = image.info.get("transparency")
    if isinstance(transparent, (int, float)):
        pixels[values == transparent] = 255
    return Image.fromarray(pixels)


def as_array(image: Image.Image) -> np.ndarray:
    """Pixels, uint8 [height, width, channels]."""
    return np.asarray(image).reshape(image.height, image.width, -1)


def center(length: int, size: int) -> slice:
    """The part of a side that a crop from the center takes."""
    start = round((length - size) / 2)
    return slice(start, start + size)


def crop_thin(image: Image.Image, resize: int, size: int, resampling: Image.Resampling) -> Image.Image:
    """Resize and crop as for other images, but only the region of the crop, with Pillow."""
    spans = []
    for length in image.size:
        resized = int(resize * length / min(image.size))
        scale = length / resized
        start = round((resized - size) / 2) * scale
        end, support = min(start + size * scale, length), 2 * max(scale, 1.0)
        spans.append((max(math.floor(start - support), 0), min(math.ceil(end + support), length), start, end))
    (left, right, x0, x1), (top, bottom, y0, y1) = spans
    region = image.crop((left, top, right, bottom))
    return region.resize((size, size), resampling, (x0 - left, y0 - top, x1 - left, y1 - top))


def resample(pixels: np.ndarray, factor: float, size: int, mode: str) -> np.ndarray:
    """Multiply the first side of pixels, uint8 [n, ...], by a factor, and crop `size` from the center of it.

    These are the bytes of torch's `interpolate(antialias=True)`: weights are rounded to as many bits as fit into 16.
    """
    length, step = math.floor(len(pixels) * factor), 1 / factor
    distance = np.abs(np.arange(len(pixels)) + 0.5 - step * (np.arange(length)[:, None] + 0.5)) / max(step, 1.0)
    near = 1 - distance
    if mode == "bicubic":
        near = (1.5 * distance - 2.5) * distance**2 + 1
        near = np.where(distance < 1, near, ((2.5 - 0.5 * distance) * distance - 4) * distance + 2)
    weights = np.where(distance < (2 if mode == "bicubic" else 1), near, 0.0)
    weights /= weights.sum(axis=1, keepdims=True)
    bits = next((bits for bits in range(22) if int(0.5 + weights.max() * 2 ** (bits + 1)) >= 2**15), 22)
    weights = np.trunc(weights * 2**bits + np.copysign(0.5, weights))[center(length, size)]
    rows, sums = pixels.reshape(len(pixels), -1), np.empty((size, pixels[0].size), np.uint8)
    for number, row in enumerate(weights):  # most weights are 0
        used = np.flatnonzero(row)
        part = slice(used[0], used[-1] + 1)
        total = row[part] @ rows[part]
        sums[number] = np.clip(np.floor(total / 2**bits + 0.5), 0, 255)
    return sums.reshape(size, *pixels.shape[1:])


class OpenVinoEmbedder(OnnxEmbedder):
    """Embeds images by a model that `vicinal export --format openvino` wrote; it needs the package openvino.

    Args:
        path: The file `NAME.xml`; beside it are `NAME.bin` and `NAME.preprocessing.json`.
        options: Arguments of `openvino.Core.compile_model`, such as `device_name` or `config`. By default it runs on
            the CPU in float32, which OpenVINO leaves for bfloat16 where the processor has it.
    """

    def _start(self, options: dict[str, Any]) -> str | None:
        core = openvino_core()
        model = core.read_model(str(self.path))
        options = {"device_name": "CPU", "config": {"INFERENCE_PRECISION_HINT": "f32"}, **options}
        self._of_thread = threading.local()
        self._compiled: Any = core.compile_model(model, **options)
        return str(model.get_rt_info("fingerprint").value) if model.has_rt_info("fingerprint") else None

    def infer(self, inputs: np.ndarray) -> np.ndarray:
        """Embed inputs of the exported model; see :meth:`OnnxEmbedder.infer`."""
        if not hasattr(self._of_thread, "request"):  # which holds the memory of all layers
            self._of_thread.request = self._compiled.create_infer_request()
        vectors: np.ndarray = self._of_thread.request.infer([inputs])[0]
        return vectors


@functools.cache
def openvino_core() -> Any:
    """The `openvino.Core` of this process, which lives as long as the process.

    The plugin for CPUs replaces the stack on which the thread that loads it handles signals, and unmaps it when the
    last core is deleted. In another thread that leaves the first one without a stack: its next signal ends the process.
    """
    import openvino

    return openvino.Core()


def runtime_options(format: str, num_threads: int, num_streams: int = 1) -> dict[str, Any]:
    """The options of a runtime for a CPU, which its embedder takes.

    Args:
        format: onnx or openvino.
        num_threads: Number of threads in all.
        num_streams: Number of threads that will call it, among which those are divided.
    """
    if format == "openvino":
        hints = {"INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": num_streams}
        return {"device_name": "CPU", "config": {"INFERENCE_NUM_THREADS": num_threads, **hints}}
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = max(1, num_threads // num_streams)
    return {"sess_options": options}
