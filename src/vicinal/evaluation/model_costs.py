"""The costs of models: size, training, and speed on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import pandas as pd

from vicinal.utils.console import aligned, duration

Kind = Literal[
    "zero-shot", "frozen", "lora", "last_blocks", "biases_norms", "full", "model", "embeddings", "index"
]  # fmt: skip
COLUMNS = {
    "model": "string",
    "kind": "string",
    "dim": "Int64",
    "size": "Int64",
    "num_parameters": "Int64",
    "trained_parameters": "Int64",
    "weights_bytes": "Int64",
    "training_seconds": "float64",
    "images_per_second": "float64",
}
HEADS = ["kind", "dim", "pixels", "parameters", "trained", "MB", "train time", "images/s"]
"""The heads of the printed columns, after the name of the model."""
UNKNOWN = "–"


@dataclass(frozen=True)
class ModelCost:
    """The costs of a model; unknown ones are None.

    Attributes:
        kind: how the model was trained: `zero-shot`, not beyond the published weights of its backbone; `frozen`, only
            its head; `lora`, `last_blocks`, `biases_norms` or `full`, the `fine_tuning.method` of its recipe; `model`,
            in an unknown way. Or `embeddings` or `index`, whose model is unknown.
        dim: dimension of the embeddings. An index takes 4 bytes per dimension and image, unless it compresses them.
        size: side of the images in pixels.
        num_parameters: number of parameters.
        trained_parameters: number of trained parameters; with adapters, of those that were added for the training.
        weights_bytes: size of weights and buffers, as `model.safetensors` has it.
        training_seconds: duration of the training, on the machine where it ran;
            see the file `training.json` of a run.
        images_per_second: throughput of the model in this evaluation, from files to embeddings.

    Example:
        >>> costs = {"vit": ModelCost("zero-shot", 384, 224, 22_000_000, 0, 88_000_000, 0.0, 51.6),
        ...          "head": ModelCost("frozen", 128, 224, 22_049_280, 49_280, 88_197_120, 83.0, 51.2)}
        >>> print(costs_text(cost_frame(costs)))
              kind       dim  pixels  parameters  trained    MB  train time  images/s
        vit   zero-shot  384     224        22 M        0    88         0 s      51.6
        head  frozen     128     224        22 M   49.3 k  88.2  1 min 23 s      51.2
    """

    kind: Kind
    dim: int
    size: int | None = None
    num_parameters: int | None = None
    trained_parameters: int | None = None
    weights_bytes: int | None = None
    training_seconds: float | None = None
    images_per_second: float | None = None


def cost_frame(costs: Mapping[str, ModelCost]) -> pd.DataFrame:
    """One row per model: its name, and the attributes of its :class:`ModelCost`, missing where they are not known."""
    rows = [{"model": name, **asdict(cost)} for name, cost in costs.items()]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


def cost_cells(row: Any) -> list[str]:
    """The printed cells of a row of :func:`cost_frame`, under `HEADS`."""
    return [
        row.kind,
        str(row.dim),
        _format_or_unknown(row.size, str),
        _format_or_unknown(row.num_parameters, _format_count),
        _format_or_unknown(row.trained_parameters, _format_count),
        _format_or_unknown(row.weights_bytes, lambda size: _format_number(size / 1e6)),
        _format_or_unknown(row.training_seconds, duration),
        _format_or_unknown(row.images_per_second, _format_number),
    ]


def costs_text(costs: pd.DataFrame) -> str:
    """Lay out the costs of models as a table for a terminal."""
    rows = ([str(row.model), *cost_cells(row)] for row in costs.itertuples())
    return aligned([["", *HEADS], *rows], num_left=2)


def _format_count(number: int) -> str:
    """A number of parameters with three digits."""
    if number < 1000:
        return str(number)
    return f"{_format_number(number / 1e3)} k" if number < 999_500 else f"{_format_number(number / 1e6)} M"


def _format_number(value: float) -> str:
    """A positive number with three digits, or all of its integral part."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _format_or_unknown(value: Any, formatter: Any) -> str:
    return UNKNOWN if pd.isna(value) else formatter(value)
