"""Benchmark datasets. Each is a function from the folder that holds its files as published to a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vicinal.data.benchmarks.names import BENCHMARKS
from vicinal.utils.imports import lazy_imports

if TYPE_CHECKING:
    from vicinal.data.benchmarks.cars import cars
    from vicinal.data.benchmarks.cars98n import cars98n
    from vicinal.data.benchmarks.clusters import landmarks_v1, sfm_120k
    from vicinal.data.benchmarks.cub import cub
    from vicinal.data.benchmarks.digits import digits
    from vicinal.data.benchmarks.food_101n import food_101n
    from vicinal.data.benchmarks.grocery import grocery
    from vicinal.data.benchmarks.in_shop import in_shop, in_shop_highres
    from vicinal.data.benchmarks.inaturalist import inaturalist_2018, mini_inaturalist_2021
    from vicinal.data.benchmarks.landmarks_v2 import landmarks_v2, landmarks_v2_full
    from vicinal.data.benchmarks.met import met, met_mini
    from vicinal.data.benchmarks.mnist import fashion_mnist, kmnist, mnist
    from vicinal.data.benchmarks.omniglot import omniglot
    from vicinal.data.benchmarks.revisited import (
        GroundTruth,
        revisited_ground_truth,
        roxford,
        roxford_1m,
        rparis,
        rparis_1m,
    )
    from vicinal.data.benchmarks.sop import sop
    from vicinal.data.benchmarks.vehicle_id import vehicle_id, vehicle_id_medium, vehicle_id_small
else:
    __getattr__, __dir__ = lazy_imports(__name__)

__all__ = [
    "BENCHMARKS",
    "GroundTruth",
    "cars",
    "cars98n",
    "cub",
    "digits",
    "fashion_mnist",
    "food_101n",
    "grocery",
    "in_shop",
    "in_shop_highres",
    "inaturalist_2018",
    "kmnist",
    "landmarks_v1",
    "landmarks_v2",
    "landmarks_v2_full",
    "met",
    "met_mini",
    "mini_inaturalist_2021",
    "mnist",
    "omniglot",
    "revisited_ground_truth",
    "roxford",
    "roxford_1m",
    "rparis",
    "rparis_1m",
    "sfm_120k",
    "sop",
    "vehicle_id",
    "vehicle_id_medium",
    "vehicle_id_small",
]
