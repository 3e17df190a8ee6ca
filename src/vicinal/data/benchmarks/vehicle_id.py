"""PKU VehicleID: images of vehicles from surveillance cameras, with test sets of three sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pandas as pd

from vicinal.data.benchmarks.cache import check_complete, find_folder
from vicinal.data.benchmarks.lists import class_number, read_list
from vicinal.data.table import Table
from vicinal.utils.errors import InputError

ATTRIBUTES = ("model", "color")
NUM_VEHICLES = {"small": 800, "medium": 1600, "large": 2400}


def vehicle_id(root: str | Path | None = None, size: Literal["small", "medium", "large"] = "large") -> Table:
    """VehicleID (Liu et al., "Deep Relative Distance Learning", CVPR 2016): vehicles are classes.

    13,134 vehicles are for training (13,164 in the list that is handed out). The published protocol has three
    test sets, and draws queries and gallery at random, so they are not in the table: evaluate the split `test` with
    :func:`~vicinal.evaluation.evaluate_vehicle_id`. Model and color of the vehicles are the columns `model` and
    `color`, numbers as published or empty, if the folder `attribute` is there.

    Args:
        root: The folder of benchmarks; by default the environment variable VICINAL_DATA, else ~/.cache/vicinal. It
            holds the published folder `VehicleID`, `VehicleID_V1.0` or `vehicle_id`, or is that folder, with the
            folders `image`, `train_test_split` and perhaps `attribute`.
        size: The test set: `small` has 800 vehicles, `medium` 1,600, `large` 2,400.

    Raises:
        InputError: The size is unknown, a file is missing, or a line of a list is not as published.
    """
    if size not in NUM_VEHICLES:
        raise InputError(f"vehicle_id: size is {size!r}; it can be {', '.join(NUM_VEHICLES)}")
    hint = "ask for VehicleID at https://www.pkuml.org/resources/pku-vehicleid.html and put it there"
    folder, lists = find_folder(root, ("vehicle_id", "VehicleID", "VehicleID_V1.0"), ("train_test_split",), hint)
    parts = {"train": "train_list.txt", "test": f"test_list_{NUM_VEHICLES[size]}.txt"}
    frames = [_frame(folder / lists / name).assign(split=split) for split, name in parts.items()]
    frame = pd.concat(frames, ignore_index=True)
    for name in ATTRIBUTES:
        path = folder / "attribute" / f"{name}_attr.txt"
        if path.is_file():
            frame[name] = frame["label"].map(_attribute(path)).astype("Int64")
    name = "vehicle_id" if size == "large" else f"vehicle_id_{size}"
    return check_complete(name, Table(frame, folder / "image"), folder)


def vehicle_id_medium(root: str | Path | None = None) -> Table:
    """:func:`vehicle_id` with the test set of 1,600 vehicles."""
    return vehicle_id(root, "medium")


def vehicle_id_small(root: str | Path | None = None) -> Table:
    """:func:`vehicle_id` with the test set of 800 vehicles."""
    return vehicle_id(root, "small")


def _frame(path: Path) -> pd.DataFrame:
    rows = read_list(path, (2,))
    labels = [class_number(vehicle, f"{path}, line {line}") for line, (_, vehicle) in rows]
    return pd.DataFrame({"path": [f"{name}.jpg" for _, (name, _) in rows], "label": labels})


def _attribute(path: Path) -> dict[int, int]:
    rows = [(f"{path}, line {line}", fields) for line, fields in read_list(path, (2,))]
    return {class_number(vehicle, where): class_number(value, where) for where, (vehicle, value) in rows}
