"""Benchmark datasets. Each is a function from the folder that holds its files as published to a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vicinal.data.benchmarks.names import BENCHMARKS
from vicinal.utils.lazy import lazy_imports

if TYPE_CHECKING:
    from vicinal.data.benchmarks.cars import cars
    from vicinal.data.benchmarks.cub import cub
    from vicinal.data.benchmarks.digits import digits
    from vicinal.data.benchmarks.glyphs import glyphs
    from vicinal.data.benchmarks.in_shop import in_shop, in_shop_highres
    from vicinal.data.benchmarks.inaturalist import inaturalist_2018, mini_inaturalist_2021
    from vicinal.data.benchmarks.omniglot import omniglot
    from vicinal.data.benchmarks.revisited import GroundTruth, revisited_ground_truth, roxford, rparis
    from vicinal.data.benchmarks.sop import sop
    from vicinal.data.benchmarks.vehicle_id import vehicle_id, vehicle_id_medium, vehicle_id_small
else:
    __getattr__, __dir__ = lazy_imports(__name__)

__all__ = [
    "BENCHMARKS",
    "GroundTruth",
    "cars",
    "cub",
    "digits",
    "glyphs",
    "in_shop",
    "in_shop_highres",
    "inaturalist_2018",
    "mini_inaturalist_2021",
    "omniglot",
    "revisited_ground_truth",
    "roxford",
    "rparis",
    "sop",
    "vehicle_id",
    "vehicle_id_medium",
    "vehicle_id_small",
]
