"""Smaller ONNX models: half precision, and static quantization to 8 bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vicinal.utils.errors import InputError, import_extra, one_line

if TYPE_CHECKING:
    import onnx

    from vicinal.utils.arrays import Floats

WITH_WEIGHTS = ("Conv", "Gemm", "MatMul")


def to_fp16(source: Path, path: Path) -> None:
    """Write an ONNX model with weights and values in half precision.

    Input and output stay as they are, and so do the normalization of the pixels and that of the vectors.

    Raises:
        InputError: onnxruntime cannot convert the model.
    """
    onnx = import_extra("onnx", "export", "fp16")
    import_extra("onnxruntime", "export", "fp16")
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = onnx.load(str(source))
    try:
        half = convert_float_to_float16(model, keep_io_types=True, node_block_list=_ends(model))
    except Exception as error:  # of many kinds
        raise InputError(f"fp16: onnxruntime cannot convert the model ({one_line(error, 200)})") from error
    _skip_detours(half, onnx.TensorProto)
    onnx.save(half, str(path))


def to_int8(source: Path, path: Path, batches: Iterator[Floats]) -> None:
    """Write an ONNX model whose convolutions and linear layers compute with 8 bits: static, per channel, QDQ.

    Weights are symmetric with 7 bits, one scale per output channel, since processors without VNNI (most with AVX2) add
    two products of 8 bits in 16 bits, which overflow; activations are uint8, with the range that they have on
    the calibration images. Products of two activations, as in attention, stay in float32.

    Args:
        source: The model in float32.
        path: The file, which is written.
        batches: The calibration images, as the input of the model.

    Raises:
        InputError: onnxruntime cannot quantize the model.
    """
    onnx = import_extra("onnx", "export", "int8")
    import_extra("onnxruntime", "export", "int8")
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared = path.with_name("prepared.onnx")
    try:
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        model = onnx.load(str(prepared))
        quantize_static(
            str(prepared),
            str(path),
            CalibrationReader(model.graph.input[0].name, batches),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(WITH_WEIGHTS),
            nodes_to_exclude=_without_weights(model),
            per_channel=True,
            reduce_range=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
    except Exception as error:  # of many kinds
        raise InputError(f"int8: onnxruntime cannot quantize the model ({one_line(error, 200)})") from error


def _ends(model: onnx.ModelProto) -> list[str]:
    """The names of the nodes before the first and after the last layer with weights."""
    nodes = model.graph.node
    layers = [number for number, node in enumerate(nodes) if node.op_type in WITH_WEIGHTS]
    return [node.name for number, node in enumerate(nodes) if not layers[0] <= number <= layers[-1]]


def _skip_detours(model: onnx.ModelProto, types: Any) -> None:
    """Read from before a cast to half precision what is cast back at once: onnxruntime puts both between two nodes."""
    makers = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        maker = makers.get(node.input[0]) if node.input else None
        if _cast_to(node) == types.FLOAT and maker is not None and _cast_to(maker) == types.FLOAT16:
            node.input[0] = maker.input[0]


def _cast_to(node: onnx.NodeProto) -> int | None:
    """The type that a node casts to; None if it is no cast."""
    if node.op_type != "Cast":
        return None
    return next(attribute.i for attribute in node.attribute if attribute.name == "to")


def _without_weights(model: onnx.ModelProto) -> list[str]:
    """The names of the products of two activations."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [node.name for node in model.graph.node if node.op_type == "MatMul" and not weights & {*node.input}]


class CalibrationReader:
    """Hands the calibration images to onnxruntime, which calls :meth:`get_next` until it returns None.

    Args:
        name: Of the model's input.
        batches: The images.
    """

    def __init__(self, name: str, batches: Iterator[Floats]) -> None:
        self.name, self.batches = name, batches

    def get_next(self) -> dict[str, Any] | None:
        """The next batch by the name of the input, or None."""
        batch = next(self.batches, None)
        return None if batch is None else {self.name: batch}
