"""Embeddings by a model that was exported for OpenVINO."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from vicinal.export.onnx_embedder import OnnxEmbedder


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
