"""An ONNX model that computes with 8 bits: static quantization with corrected biases."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vicinal.export.conversion import WITH_WEIGHTS
from vicinal.export.onnx_embedder import runtime_options
from vicinal.utils.errors import InputError, import_extra, one_line

if TYPE_CHECKING:
    import onnx

    from vicinal.utils.arrays import Doubles, Floats

FEW_WEIGHTS = 0.002
"""Layers with a smaller fraction of all weights stay in float32."""
MEAN = "/mean"  # the end of the name of an output


def to_int8(source: Path, path: Path, batches: Iterator[Floats]) -> None:
    """Write an ONNX model whose convolutions and linear layers compute with 8 bits: static, per channel, QDQ.

    Weights are symmetric with 7 bits, one scale per output channel, since processors without VNNI (most with AVX2) add
    two products of 8 bits in 16 bits, which overflow; activations are uint8, with the range that they have on
    the calibration images. Biases make up for the rounding of the weights (:class:`BiasCorrection`). Products of two
    activations, as in attention, the first convolution, depthwise ones and layers with less than 0.2 % of the weights
    stay in float32.
    """
    onnx = import_extra("onnx", "export", "int8")
    import_extra("onnxruntime", "export", "int8")
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared = path.with_name("prepared.onnx")
    try:
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        model = onnx.load(str(prepared))
        correction = BiasCorrection(model)
        quantize_static(
            str(prepared),
            str(path),
            CalibrationReader(model.graph.input[0].name, batches, correction),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(WITH_WEIGHTS),
            nodes_to_exclude=[*_without_weights(model), *_sensitive(model)],
            per_channel=True,
            reduce_range=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        correction.apply(path)
    except Exception as error:  # of many kinds
        raise InputError(f"int8: onnxruntime cannot quantize the model ({one_line(error, 200)})") from error


def _sensitive(model: onnx.ModelProto) -> list[str]:
    """The names of the layers that lose most by 8 bits: the first and depthwise convolutions, and those of few weights.

    Quantized one at a time, the layers of EfficientNet-Lite0 that turn the vectors most are among its first ones, which
    have few weights, so keeping them in float32 costs next to no bytes.
    """
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    layers = [node for node in model.graph.node if node.op_type in WITH_WEIGHTS and len(node.input) > 1]
    sizes = [math.prod(shapes.get(node.input[1], (0,))) for node in layers]
    first = next((node for node in layers if node.op_type == "Conv"), None)
    return [
        node.name
        for node, size in zip(layers, sizes, strict=True)
        if node is first
        or (node.op_type == "Conv" and shapes.get(node.input[1], (0, 0))[1] == 1)
        or 0 < size < FEW_WEIGHTS * sum(sizes)
    ]


def _without_weights(model: onnx.ModelProto) -> list[str]:
    """The names of the products of two activations."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [node.name for node in model.graph.node if node.op_type == "MatMul" and not weights & {*node.input}]


class CalibrationReader:
    """Hands the calibration images to onnxruntime, which calls :meth:`get_next` until it returns None."""

    def __init__(self, name: str, batches: Iterator[Floats], correction: BiasCorrection) -> None:
        self.name, self.batches, self.correction = name, batches, correction

    def get_next(self) -> dict[str, Any] | None:
        """The next batch by the name of the input, or None."""
        batch = next(self.batches, None)
        if batch is None:
            return None
        self.correction.observe(batch)
        return {self.name: batch}


class BiasCorrection:
    """Moves the biases of convolutions and linear layers, so that rounded weights keep the mean of each channel.

    Values after a ReLU have a mean far from zero, so that the rounding errors of the weights of a channel add up to a
    constant, which the bias takes back: with weights `W` rounded to `Q` and mean inputs `m`, it is `(Q - W) m`. See
    Nagel et al., Data-Free Quantization Through Weight Equalization and Bias Correction, ICCV 2019.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        self._onnx = import_extra("onnx", "export", "int8")
        self._weights = {tensor.name: tensor for tensor in model.graph.initializer}
        uses = Counter(name for node in model.graph.node for name in node.input)
        self._layers = {
            node.name: node
            for node in model.graph.node
            if node.op_type in ("Conv", "Gemm")
            and len(node.input) == 3
            and all(name in self._weights and uses[name] == 1 for name in node.input[1:])
        }
        self._sums: dict[str, Any] = {}
        self._num_images = 0
        self._session = self._with_means(model)

    def _with_means(self, model: onnx.ModelProto) -> Any:
        """A session of the model whose outputs are the mean inputs of the layers, per channel."""
        from onnxruntime import InferenceSession

        copied, helper = self._onnx.ModelProto(), self._onnx.helper
        copied.CopyFrom(model)
        del copied.graph.output[:]
        for name, node in {node.input[0]: node for node in self._layers.values()}.items():
            ndim = len(self._weights[node.input[1]].dims)
            axes = self._onnx.numpy_helper.from_array(np.array([0, *range(2, ndim)]), f"{name}{MEAN}/axes")
            copied.graph.initializer.append(axes)
            copied.graph.node.append(helper.make_node("ReduceMean", [name, axes.name], [f"{name}{MEAN}"], keepdims=0))
            copied.graph.output.append(helper.make_tensor_value_info(f"{name}{MEAN}", 1, [None]))
        if not self._layers:
            return None
        options = runtime_options("onnx", torch.get_num_threads())
        return InferenceSession(copied.SerializeToString(), providers=["CPUExecutionProvider"], **options)

    def observe(self, images: Floats) -> None:
        """Take the means of the inputs of all layers for some images, the input of the model."""
        if self._session is None:
            return
        names = [output.name for output in self._session.get_outputs()]
        means = self._session.run(names, {self._session.get_inputs()[0].name: images})
        for name, mean in zip(names, means, strict=True):
            self._sums[name] = self._sums.get(name, 0.0) + len(images) * mean.astype(np.float64)
        self._num_images += len(images)

    def apply(self, path: Path) -> None:
        """Correct the biases in the file of the quantized model, whose layers have the names of the float model's."""
        model = self._onnx.load(str(path))
        stored = {tensor.name: tensor for tensor in model.graph.initializer}
        makers = {name: node for node in model.graph.node for name in node.output}
        for node in model.graph.node:
            layer = self._layers.get(node.name)
            if layer is None or node.input[1] not in makers:  # other layers stay in float32
                continue
            rounded, _ = self._values(makers[node.input[1]], stored)
            shift = self._shift(layer, rounded - self._onnx.numpy_helper.to_array(self._weights[layer.input[1]]))
            bias, scale = self._values(makers[node.input[2]], stored)
            tensor = stored[makers[node.input[2]].input[0]]
            tensor.CopyFrom(
                self._onnx.numpy_helper.from_array(np.rint((bias - shift) / scale).astype(np.int32), tensor.name)
            )
        self._onnx.save(model, str(path))

    def _values(self, node: onnx.NodeProto, stored: dict[str, onnx.TensorProto]) -> tuple[Doubles, Doubles]:
        """The values that a node reads from integers, and their scale."""
        integers, scale, zero = (
            self._onnx.numpy_helper.to_array(stored[name]).astype(np.float64) for name in node.input
        )
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
        shape = [-1 if number == axis % integers.ndim else 1 for number in range(integers.ndim)]
        if scale.ndim:
            scale, zero = scale.reshape(shape), zero.reshape(shape)
        return (integers - zero) * scale, scale

    def _shift(self, layer: onnx.NodeProto, error: Doubles) -> Doubles:
        """How far errors of the weights move the mean output of a layer, per channel."""
        options = {attribute.name: attribute.i for attribute in layer.attribute}
        mean = self._sums[f"{layer.input[0]}{MEAN}"] / self._num_images
        if layer.op_type == "Gemm":
            return error @ mean if options.get("transB") else mean @ error
        groups = options.get("group", 1)
        by_group = error.sum(axis=tuple(range(2, error.ndim))).reshape(groups, -1, len(mean) // groups)
        return np.einsum("goi,gi->go", by_group, mean.reshape(groups, -1)).reshape(-1)
