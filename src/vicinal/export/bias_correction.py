"""Biases of an 8-bit model that make up for the rounding of its weights."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vicinal.export.onnx_embedder import runtime_options
from vicinal.utils.errors import import_extra

if TYPE_CHECKING:
    import onnx

    from vicinal.utils.arrays import Doubles, Floats

MEAN = "/mean"  # the end of the name of an output


class BiasCorrection:
    """Moves the biases of convolutions and linear layers, so that rounded weights leave the mean of each channel.

    Values after a ReLU have a mean far from zero, so that the rounding errors of the weights of a channel add up to a
    constant, which the bias takes back: with weights `W` rounded to `Q` and mean inputs `m`, it is `(Q - W) m`. See
    Nagel et al., Data-Free Quantization Through Weight Equalization and Bias Correction, ICCV 2019.

    Args:
        model: The model in float32, with a name for each node.
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
