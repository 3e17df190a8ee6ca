"""The verbs of the command, callable from Python."""

from typing import TYPE_CHECKING

from vicinal.utils.imports import lazy_imports

if TYPE_CHECKING:
    from vicinal.workflows.calibrate import calibrate_source as calibrate_source
    from vicinal.workflows.calibration_places import keep_calibration as keep_calibration
    from vicinal.workflows.calibration_places import stored_calibration as stored_calibration
    from vicinal.workflows.clean import find_problems_of_source as find_problems_of_source
    from vicinal.workflows.embedded_table import EmbeddedTable as EmbeddedTable
    from vicinal.workflows.embedding_reader import BatchEmbedder as BatchEmbedder
    from vicinal.workflows.embedding_reader import EmbeddingReader as EmbeddingReader
    from vicinal.workflows.embedding_reader import embed_several as embed_several
    from vicinal.workflows.evaluate import EvaluatedSource as EvaluatedSource
    from vicinal.workflows.evaluate import evaluate_sources as evaluate_sources
    from vicinal.workflows.evaluate import per_query_frame as per_query_frame
    from vicinal.workflows.evaluate import tabulate_sources as tabulate_sources
    from vicinal.workflows.export import export_source as export_source
    from vicinal.workflows.individuals import apply_identity_decisions as apply_identity_decisions
    from vicinal.workflows.individuals import enrolled_quality as enrolled_quality
    from vicinal.workflows.model_costs import PretrainedModel as PretrainedModel
    from vicinal.workflows.model_costs import describe_model as describe_model
    from vicinal.workflows.model_costs import measured_speed as measured_speed
    from vicinal.workflows.model_costs import model_names as model_names
    from vicinal.workflows.models import load_model as load_model
    from vicinal.workflows.models import load_refiner as load_refiner
    from vicinal.workflows.ray_job import embed_on_ray as embed_on_ray
    from vicinal.workflows.refine import resume_refiner as resume_refiner
    from vicinal.workflows.refine import train_refiner as train_refiner
    from vicinal.workflows.report import write_report as write_report
    from vicinal.workflows.settings import CalibrationSettings as CalibrationSettings
    from vicinal.workflows.settings import CleanSettings as CleanSettings
    from vicinal.workflows.settings import EvaluationSettings as EvaluationSettings
    from vicinal.workflows.settings import SweepSettings as SweepSettings
    from vicinal.workflows.settings import TuneSettings as TuneSettings
    from vicinal.workflows.shards import embed_shard as embed_shard
    from vicinal.workflows.source import Source as Source
    from vicinal.workflows.tuning.sweep import SweepCell as SweepCell
    from vicinal.workflows.tuning.sweep import SweepResult as SweepResult
    from vicinal.workflows.tuning.sweep import sweep as sweep
    from vicinal.workflows.tuning.tune import TuneResult as TuneResult
    from vicinal.workflows.tuning.tune import tune as tune
    from vicinal.workflows.upgrade import roll_back as roll_back
    from vicinal.workflows.upgrade import upgrade_index as upgrade_index
    from vicinal.workflows.upgrade_comparison import GenerationComparison as GenerationComparison


__getattr__, __dir__ = lazy_imports(__name__)
