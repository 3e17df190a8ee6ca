"""PKU VehicleID: images of vehicles from surveillance cameras, with test sets of three sizes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import pandas as pd

from vicinal.data.benchmarks.cache import cache_folder
from vicinal.data.benchmarks.lists import read_list
from vicinal.data.table import Table
from vicinal.utils.errors import InputError

NUM_VEHICLES = {"small": 800, "medium": 1600, "large": 2400}


def vehicle_id(root: str | Path | None = None, size: Literal["small", "medium", "large"] = "large") -> Table:
    """VehicleID (Liu et al., "Deep Relative Distance Learning", CVPR 2016): vehicles are classes.

    The published protocol has three test sets, and draws queries and gallery at random, so they are not in the table:
    evaluate the split `test` with :func:`~vicinal.evaluation.vehicle_id.evaluate_vehicle_id`.

    Args:
        root: The folder of benchmarks; by default the environment variable VICINAL_DATA, else ~/.cache/vicinal. Its
            folder `vehicle_id` holds the published folders `image` and `train_test_split`.
        size: The test set: `small` has 800 vehicles, `medium` 1,600, `large` 2,400.

    Raises:
        InputError: The size is unknown, a file is missing, or a line of a list is not as published.
    """
    if size not in NUM_VEHICLES:
        raise InputError(f"vehicle_id: size is {size!r}; it can be {', '.join(NUM_VEHICLES)}")
    folder = cache_folder(root) / "vehicle_id"
    lists = folder / "train_test_split"
    if not lists.is_dir():
        raise InputError(
            f"{folder}: no folder train_test_split; ask for VehicleID at "
            "https://www.pkuml.org/resources/pku-vehicleid.html and put it there, or give the folder above as root"
        )
    parts = {"train": "train_list.txt", "test": f"test_list_{NUM_VEHICLES[size]}.txt"}
    frames = [_frame(lists / name).assign(split=split) for split, name in parts.items()]
    return Table(pd.concat(frames, ignore_index=True), folder / "image")


def vehicle_id_medium(root: str | Path | None = None) -> Table:
    """:func:`vehicle_id` with the test set of 1,600 vehicles."""
    return vehicle_id(root, "medium")


def vehicle_id_small(root: str | Path | None = None) -> Table:
    """:func:`vehicle_id` with the test set of 800 vehicles."""
    return vehicle_id(root, "small")


def _frame(path: Path) -> pd.DataFrame:
    rows = read_list(path, (2,))
    for line, (_, vehicle) in rows:
        if not re.fullmatch("[0-9]{1,18}", vehicle):  # a 64-bit integer; Python refuses to parse very long ones
            raise InputError(
                f"{path}, line {line}: {vehicle[:40]!r}; a line is the image's name and the vehicle's number, "
                "of up to 18 digits"
            )
    names, vehicles = zip(*(cells for _, cells in rows), strict=True)
    return pd.DataFrame({"path": [f"{name}.jpg" for name in names], "label": [int(vehicle) for vehicle in vehicles]})
