from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys

from vicinal import evaluation

# Made by the functions that are exported, or the parts they are made of.
INNER = {
    "CountCheckpoint",
    "Counting",
    "Division",
    "ExcludedPairs",
    "LabelPairs",
    "TotalCounts",
    "UnitTotals",
    "adjusted_mutual_information",
    "auroc",
    "bootstrap_bounds",
    "check_confidence_level",
    "coarse_relevances",
    "common_metrics",
    "cost_cells",
    "costs_text",
    "default_folds",
    "fit_probabilities",
    "full_names",
    "has_many_ties",
    "headline",
    "held_out_accepts",
    "identified",
    "metric_differences",
    "most_accurate_threshold",
    "one_per_class",
    "own_gallery_rows",
    "precision_at_k",
    "rate_interval",
    "resample_weights",
    "student_tails",
    "threshold_for",
    "results_text",
    "same_image_or_group",
    "score_queries",
    "trapezoidal_precision",
    "unit_totals",
}
# Single steps, behind the functions that are exported.
PARTS = {
    "counting",
    "metrics",
    "ranking",
    "relevance",
    "thresholds",
}


def test_every_public_name_is_exported_or_inner() -> None:
    for found in pkgutil.iter_modules(evaluation.__path__):
        module = importlib.import_module(f"vicinal.evaluation.{found.name}")
        own = {
            name
            for name, value in vars(module).items()
            if not name.startswith("_")
            and (inspect.isclass(value) or inspect.isfunction(value))
            and value.__module__ == module.__name__
        }
        if found.name not in PARTS:
            assert own - INNER <= set(evaluation.__all__), found.name


def test_numba_is_imported_when_counting_begins() -> None:
    code = (
        "import sys; from vicinal import evaluate; from vicinal.data.table import Table; print('numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
