"""The evaluation of a study's models on the test split, by `vicinal evaluate`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vicinal.workflows.evaluation_settings import BENCHMARK_PROTOCOLS, VEHICLE_ID

if TYPE_CHECKING:
    from vicinal.training.recipes.recipe import Recipe
    from vicinal.workflows.tuning.settings import SweepSettings, TuneSettings


def evaluation_words(recipe: Recipe, settings: TuneSettings | SweepSettings) -> list[str]:
    """The options of `vicinal evaluate` for the runs of a recipe: on its device, by the protocol of its benchmark.

    Args:
        recipe: of the runs.
        settings: further metrics.
    """
    words = ["--device", "cpu"] if recipe.settings.accelerator == "cpu" else []
    if BENCHMARK_PROTOCOLS.get(str(recipe.settings.data.source)) == VEHICLE_ID:
        words += ["--protocol", VEHICLE_ID]
    words += [f"--{name}" for name in ("hierarchy", "clusters") if getattr(settings, name)]
    for name in ("recall_at", "metrics"):
        values = [str(value) for value in getattr(settings, name) or ()]
        words += [f"--{name}", *values] if values else []
    return words


def metrics_of(printed: Mapping[str, Any]) -> dict[str, float]:
    """The metrics over all queries, by their full names such as `coarse/mAP`, in what `vicinal evaluate` prints.

    Example:
        >>> row = {"metric": "mAP", "label_level": "label", "group": None, "value": 0.5}
        >>> metrics_of({"results": [row, {**row, "label_level": "coarse", "value": 0.75}]})
        {'mAP': 0.5, 'coarse/mAP': 0.75}
    """
    rows = [row for row in printed["results"] if row["group"] is None]
    levels = ["" if row["label_level"] == "label" else f"{row['label_level']}/" for row in rows]
    return {f"{level}{row['metric']}": row["value"] for level, row in zip(levels, rows, strict=True)}
