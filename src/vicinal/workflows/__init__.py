"""The verbs of the command, callable from Python."""

from typing import TYPE_CHECKING

from vicinal.utils.imports import lazy_imports

if TYPE_CHECKING:
    from vicinal.workflows.calibrate import calibrate_source
    from vicinal.workflows.calibration_places import keep_calibration, stored_calibration
    from vicinal.workflows.clean import find_problems_of_source
    from vicinal.workflows.embedded_table import EmbeddedTable
    from vicinal.workflows.embedding_reader import BatchEmbedder, EmbeddingReader, embed_several
    from vicinal.workflows.evaluate import EvaluatedSource, evaluate_sources, per_query_frame, tabulate_sources
    from vicinal.workflows.export import export_source
    from vicinal.workflows.individuals import apply_identity_decisions, enrolled_quality
    from vicinal.workflows.model_costs import PretrainedModel, describe_model, measured_speed, model_names
    from vicinal.workflows.models import load_model, load_refiner
    from vicinal.workflows.ray_job import embed_on_ray
    from vicinal.workflows.refine import resume_refiner, train_refiner
    from vicinal.workflows.report import write_report
    from vicinal.workflows.settings import (
        CalibrationSettings,
        CleanSettings,
        EvaluationSettings,
        SweepSettings,
        TuneSettings,
    )
    from vicinal.workflows.shards import embed_shard
    from vicinal.workflows.source import Source
    from vicinal.workflows.tuning.sweep import SweepCell, SweepResult, sweep
    from vicinal.workflows.tuning.tune import TuneResult, tune
    from vicinal.workflows.upgrade import roll_back, upgrade_index
    from vicinal.workflows.upgrade_comparison import GenerationComparison

__all__ = [
    "BatchEmbedder",
    "CalibrationSettings",
    "CleanSettings",
    "EmbeddedTable",
    "EmbeddingReader",
    "EvaluatedSource",
    "EvaluationSettings",
    "GenerationComparison",
    "PretrainedModel",
    "Source",
    "SweepCell",
    "SweepResult",
    "SweepSettings",
    "TuneResult",
    "TuneSettings",
    "apply_identity_decisions",
    "calibrate_source",
    "describe_model",
    "embed_on_ray",
    "embed_several",
    "embed_shard",
    "enrolled_quality",
    "evaluate_sources",
    "export_source",
    "find_problems_of_source",
    "keep_calibration",
    "load_model",
    "load_refiner",
    "measured_speed",
    "model_names",
    "per_query_frame",
    "resume_refiner",
    "roll_back",
    "stored_calibration",
    "sweep",
    "tabulate_sources",
    "train_refiner",
    "tune",
    "upgrade_index",
    "write_report",
]

__getattr__, __dir__ = lazy_imports(__name__)
