"""Exported models for ONNX Runtime and OpenVINO, each with a report of how it compares with its model."""

from typing import TYPE_CHECKING

from vicinal.utils.imports import lazy_imports

if TYPE_CHECKING:
    from vicinal.export.exported_embedder import ExportedEmbedder as ExportedEmbedder
    from vicinal.export.exported_embedder import open_exported as open_exported
    from vicinal.export.exporter import export_model as export_model
    from vicinal.export.onnx_embedder import OnnxEmbedder as OnnxEmbedder
    from vicinal.export.onnx_embedder import OpenVinoEmbedder as OpenVinoEmbedder
    from vicinal.export.parity import Differences as Differences
    from vicinal.export.parity import ParityReport as ParityReport
    from vicinal.export.settings import ExportSettings as ExportSettings
else:
    __getattr__, __dir__ = lazy_imports(__name__)
