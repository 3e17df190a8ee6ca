"""Benchmark datasets. Each is a function from the folder that holds its files to a table."""

from collections.abc import Callable
from pathlib import Path

from vicinal.data.benchmarks.digits import digits
from vicinal.data.benchmarks.glyphs import glyphs
from vicinal.data.benchmarks.in_shop import in_shop
from vicinal.data.benchmarks.omniglot import omniglot
from vicinal.data.benchmarks.revisited import GroundTruth, revisited_ground_truth, roxford, rparis
from vicinal.data.benchmarks.vehicle_id import vehicle_id, vehicle_id_medium, vehicle_id_small
from vicinal.data.table import Table

BENCHMARKS: dict[str, Callable[[str | Path | None], Table]] = {
    "digits": digits,
    "glyphs": glyphs,
    "omniglot": omniglot,
    "in_shop": in_shop,
    "vehicle_id": vehicle_id,
    "vehicle_id_medium": vehicle_id_medium,
    "vehicle_id_small": vehicle_id_small,
    "roxford": roxford,
    "rparis": rparis,
}
"""The function of each benchmark, by the name that recipes and the command use."""

__all__ = [
    "BENCHMARKS",
    "GroundTruth",
    "digits",
    "glyphs",
    "in_shop",
    "omniglot",
    "revisited_ground_truth",
    "roxford",
    "rparis",
    "vehicle_id",
    "vehicle_id_medium",
    "vehicle_id_small",
]
