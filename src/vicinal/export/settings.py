"""The settings of an export: format, precision, input, and tolerance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vicinal.utils.arguments import check_nonnegative, check_positive_integer, check_seed, given
from vicinal.utils.errors import InputError

Format = Literal["onnx", "openvino"]
Precision = Literal["fp32", "fp16", "int8"]
SUFFIXES: dict[Format, str] = {"onnx": ".onnx", "openvino": ".xml"}
TOLERANCES: dict[Precision, float] = {"fp32": 1e-4, "fp16": 0.005, "int8": 0.01}


@dataclass(frozen=True)
class ExportSettings:
    """How a model is exported.

    Args:
        format: onnx, for ONNX Runtime and most others; or openvino, for Intel's.
        precision: of the weights and of the computation: fp32; fp16, half the size, for GPUs; or int8, a quarter of the
            size, static quantization of the convolutions and linear layers by calibration images, per channel.
        input: pixels, uint8 from 0 to 255, which the exported model normalizes itself; or tensor, float32, which were
            normalized before.
        layout: of the input: nchw, [n, channels, height, width]; or nhwc, [n, height, width, channels].
        size: side of the images in pixels, for a backbone that takes other sizes. None takes that of the model.
        dynamic_size: the exported model takes images of any size, also whole ones, if its backbone does.
        num_calibration_images: number of images by which int8 is calibrated.
        max_check_images: number of images that the parity is measured on, at most; they are whole classes then.
        batch_size: number of images that are embedded at a time.
        tolerance: the largest loss allowed: for fp32 the largest difference of a component of a vector; for fp16
            and int8 the difference of recall@1 and of mAP@R, from 0 to 1. None: 0.0001, 0.005 for fp16, 0.01 for int8.
        seed: of the random choice of images.

    Raises:
        InputError: a setting is invalid.

    Example:
        >>> ExportSettings(precision="int8").limit
        0.01
    """

    format: Format = "onnx"
    precision: Precision = "fp32"
    input: Literal["pixels", "tensor"] = "pixels"
    layout: Literal["nchw", "nhwc"] = "nchw"
    size: int | None = None
    dynamic_size: bool = False
    num_calibration_images: int = 256
    max_check_images: int = 5000
    batch_size: int = 64
    tolerance: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("format", self.format, SUFFIXES),
            ("precision", self.precision, TOLERANCES),
            ("input", self.input, ("pixels", "tensor")),
            ("layout", self.layout, ("nchw", "nhwc")),
        ):
            if value not in choices:
                raise InputError(f"{name} is {value!r}; choose {' or '.join(choices)}")
        counts = ("num_calibration_images", "max_check_images", "batch_size")
        check_positive_integer(self, **{name: getattr(self, name) for name in counts}, **given(size=self.size))
        check_nonnegative(self, **given(tolerance=self.tolerance))
        check_seed(self, self.seed)

    @property
    def limit(self) -> float:
        """The tolerance, or its default."""
        return TOLERANCES[self.precision] if self.tolerance is None else self.tolerance
