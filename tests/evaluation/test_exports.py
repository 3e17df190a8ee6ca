from __future__ import annotations

import importlib
import inspect
import pkgutil

from vicinal import evaluation

# Made by the functions that are exported, or the parts they are made of.
INNER = {
    "adjusted_mutual_information",
    "check_sampling",
    "coarse_levels",
    "common_metrics",
    "csv_text",
    "headline",
    "many_ties",
    "one_of_each",
    "precision_at_k",
    "query_classes",
    "scorecards_csv",
    "trapezoidal_precision",
}
PARTS = {"counting", "device_counting", "metrics", "positives", "ranking", "relevance"}  # single steps, behind one door


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


def test_all_names_are_there_and_in_order() -> None:
    assert evaluation.__all__ == sorted(evaluation.__all__)
    assert all(hasattr(evaluation, name) for name in evaluation.__all__)
