"""Benchmark datasets. Each is a function from the folder that holds its files as published to a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vicinal.utils.imports import lazy_imports

if TYPE_CHECKING:
    from vicinal.data.benchmarks.cars import cars, cars98n
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

BENCHMARKS = {
    "digits": "handwritten digits of scikit-learn, 8 x 8 pixels",
    "mnist": "handwritten digits, MNIST; the same classes in training and test",
    "fashion_mnist": "clothes, Fashion-MNIST; the same classes in training and test",
    "kmnist": "Japanese characters, Kuzushiji-MNIST; the same classes in training and test",
    "omniglot": "handwritten characters, Omniglot's small background sets",
    "cub": "birds, CUB-200-2011",
    "cars": "cars, Cars196",
    "cars98n": "cars from the web with noisy labels, Cars98N; tested on Cars196",
    "sop": "products, Stanford Online Products",
    "in_shop": "clothes, In-Shop of DeepFashion",
    "in_shop_highres": "the same with the images of high resolution",
    "inaturalist_2018": "plants and animals, iNaturalist 2018",
    "mini_inaturalist_2021": "plants and animals, mini-iNaturalist 2021",
    "vehicle_id": "vehicles, PKU VehicleID with the large test set",
    "vehicle_id_medium": "the same with the medium test set",
    "vehicle_id_small": "the same with the small test set",
    "food_101n": "food from the web with noisy labels, Food-101N; tested on Food-101",
    "grocery": "products on shelves, Grocery Store with disjoint classes",
    "met": "works of art, the Met dataset",
    "met_mini": "the same with the small catalog",
    "landmarks_v1": "landmarks for training, Google Landmarks v1",
    "landmarks_v2": "landmarks, Google Landmarks v2 with the clean training set",
    "landmarks_v2_full": "the same with all training images",
    "sfm_120k": "landmarks for training, retrieval-SfM-120k",
    "roxford": "landmarks, revisited Oxford",
    "rparis": "landmarks, revisited Paris",
    "roxford_1m": "landmarks, revisited Oxford with a million distractors",
    "rparis_1m": "landmarks, revisited Paris with a million distractors",
}
"""Descriptions of the benchmarks by the names of their functions, which recipes and the command use too."""
