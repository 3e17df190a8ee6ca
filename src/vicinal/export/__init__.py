"""Exported models for ONNX Runtime and OpenVINO, each with a report of how it compares with its model."""

from typing import TYPE_CHECKING

from vicinal.utils.imports import lazy_imports

if TYPE_CHECKING:
    from vicinal.export.exported_embedder import ExportedEmbedder, open_exported
    from vicinal.export.exporter import export_model
    from vicinal.export.onnx_embedder import OnnxEmbedder, OpenVinoEmbedder
    from vicinal.export.parity import Differences, ParityReport
    from vicinal.export.settings import ExportSettings
else:
    __getattr__, __dir__ = lazy_imports(__name__)

__all__ = [
    "Differences",
    "ExportSettings",
    "ExportedEmbedder",
    "OnnxEmbedder",
    "OpenVinoEmbedder",
    "ParityReport",
    "export_model",
    "open_exported",
]
