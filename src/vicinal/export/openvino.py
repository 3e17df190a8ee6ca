"""Models for OpenVINO: writing them, and embedding with them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vicinal.export.exported_embedder import runtime_options
from vicinal.export.graph import ExportGraph
from vicinal.export.onnx_embedder import OnnxEmbedder
from vicinal.export.onnx_export import EXAMPLES, quiet, sides
from vicinal.utils.arrays import Floats
from vicinal.utils.errors import InputError, one_line


class OpenVinoEmbedder(OnnxEmbedder):
    """Embeds images by a model that `vicinal export --format openvino` wrote; it needs the package openvino.

    Args:
        path: The file `NAME.xml`; beside it are `NAME.bin` and `NAME.preprocessing.json`.
        options: Arguments of `openvino.Core.compile_model`, such as `device_name` or `config`. By default it runs on
            the CPU in float32, which OpenVINO leaves for bfloat16 where the processor has it.
    """

    def _start(self, options: dict[str, Any]) -> str | None:
        import openvino

        core = openvino.Core()
        model = core.read_model(str(self.path))
        options = {"device_name": "CPU", "config": {"INFERENCE_PRECISION_HINT": "f32"}, **options}
        self._of_thread = threading.local()
        self._compiled: Any = core.compile_model(model, **options)
        return str(model.get_rt_info("fingerprint").value) if model.has_rt_info("fingerprint") else None

    def infer(self, inputs: np.ndarray) -> np.ndarray:
        """Embed what the exported model takes; see :meth:`OnnxEmbedder.infer`."""
        if not hasattr(self._of_thread, "request"):  # which holds the memory of all layers
            self._of_thread.request = self._compiled.create_infer_request()
        vectors: np.ndarray = self._of_thread.request.infer([inputs])[0]
        return vectors


def to_openvino(graph: ExportGraph, fingerprint: str) -> Any:
    """Convert a network to a model of OpenVINO with float32 weights, whose batch size is free.

    Args:
        graph: The network.
        fingerprint: Of the model; it is stored in the result.

    Raises:
        InputError: The network cannot be converted.
    """
    import openvino

    size, settings = graph.model.transform.size, graph.settings
    example = graph.example(EXAMPLES, size, size)
    shape = list(example.shape)
    for free in (0, *(sides(settings.layout) if settings.dynamic_size else ())):
        shape[free] = -1
    with quiet(), torch.no_grad():
        try:
            model = openvino.convert_model(graph, example_input=example, input=[openvino.PartialShape(shape)])
        except Exception as error:  # what torch, OpenVINO and the network's own code raise
            name = graph.model.config["backbone"]
            raise InputError(f"{name} cannot be exported ({one_line(error, 200)})") from error
    return _with_fingerprint(model, fingerprint)


def read_onnx(path: Path, fingerprint: str) -> Any:
    """Read an ONNX model as a model of OpenVINO."""
    import openvino

    return _with_fingerprint(openvino.Core().read_model(str(path)), fingerprint)


def save_openvino(model: Any, path: Path, half: bool) -> None:
    """Write a model of OpenVINO, with weights in half precision if `half`."""
    import openvino

    openvino.save_model(model, str(path), compress_to_fp16=half)


def openvino_function(model: Any) -> Callable[[Floats], Floats]:
    """The function of a model of OpenVINO, in float32."""
    import openvino

    compiled = openvino.compile_model(model, **runtime_options("openvino", torch.get_num_threads()))
    return lambda images: compiled([images])[0]


def _with_fingerprint(model: Any, fingerprint: str) -> Any:
    model.set_rt_info(fingerprint, "fingerprint")
    return model
