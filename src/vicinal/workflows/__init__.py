"""What the verbs of the command do, callable from Python."""

from typing import TYPE_CHECKING

from vicinal.utils.imports import lazy_imports

if TYPE_CHECKING:
    from vicinal.workflows.calibration.calibrate import calibrate_source
    from vicinal.workflows.calibration.calibration_places import CalibrationPlaces, stored_calibration
    from vicinal.workflows.calibration.calibration_settings import CalibrationSettings
    from vicinal.workflows.clean import find_problems_of_source
    from vicinal.workflows.clean_settings import CleanSettings
    from vicinal.workflows.embedding.batch_embedder import BatchEmbedder
    from vicinal.workflows.embedding.embed_shard import embed_shard
    from vicinal.workflows.evaluate import EvaluatedSource, evaluate_sources, per_query_frame, tabulate_sources
    from vicinal.workflows.evaluation_settings import EvaluationSettings
    from vicinal.workflows.export import export_source
    from vicinal.workflows.model_list import PretrainedModel, describe_model, measured_speed, model_names
    from vicinal.workflows.models import load_model, load_refiner
    from vicinal.workflows.ray.embed_on_ray import embed_on_ray
    from vicinal.workflows.refine import resume_refiner, train_refiner
    from vicinal.workflows.report import write_report
    from vicinal.workflows.sources.embedded_table import EmbeddedTable
    from vicinal.workflows.sources.embedding_reader import EmbeddingReader
    from vicinal.workflows.sources.image_tables import load_image_table
    from vicinal.workflows.sources.several_sources import embed_several
    from vicinal.workflows.tuning.settings import SweepSettings, TuneSettings
    from vicinal.workflows.tuning.sweep import SweepCell, SweepResult, sweep
    from vicinal.workflows.tuning.tune import tune
    from vicinal.workflows.tuning.tune_result import TuneResult

__all__ = [
    "BatchEmbedder",
    "CalibrationPlaces",
    "CalibrationSettings",
    "CleanSettings",
    "EmbeddedTable",
    "EmbeddingReader",
    "EvaluatedSource",
    "EvaluationSettings",
    "PretrainedModel",
    "SweepCell",
    "SweepResult",
    "SweepSettings",
    "TuneResult",
    "TuneSettings",
    "calibrate_source",
    "describe_model",
    "embed_on_ray",
    "embed_several",
    "embed_shard",
    "evaluate_sources",
    "export_source",
    "find_problems_of_source",
    "load_image_table",
    "load_model",
    "load_refiner",
    "measured_speed",
    "model_names",
    "per_query_frame",
    "resume_refiner",
    "stored_calibration",
    "sweep",
    "tabulate_sources",
    "train_refiner",
    "tune",
    "write_report",
]

__getattr__, __dir__ = lazy_imports(__name__)
