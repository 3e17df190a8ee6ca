"""All benchmarks can be had by name, and whoever misspells one is told which there are."""

from __future__ import annotations

from pathlib import Path

import pytest

import vicinal.data
from vicinal.data import benchmarks, load_table
from vicinal.data.benchmarks import BENCHMARKS
from vicinal.utils.errors import InputError

HELPERS = {"__init__", "cache", "lists", "plain_pickle"}


def test_every_file_of_a_benchmark_is_registered() -> None:
    files = {path.stem for path in Path(benchmarks.__file__).parent.glob("*.py")} - HELPERS
    registered = {getattr(load, "func", load).__module__.rpartition(".")[2] for load in BENCHMARKS.values()}
    assert registered == files


def test_every_function_that_makes_a_table_is_registered() -> None:
    others = {"BENCHMARKS", "GroundTruth", "revisited_ground_truth"}
    assert set(BENCHMARKS) == set(benchmarks.__all__) - others


def test_every_benchmark_can_be_imported_by_its_name() -> None:
    for name, load in BENCHMARKS.items():
        assert getattr(benchmarks, name) is load
        assert name in benchmarks.__all__
        assert name in str(load_table.__doc__) or name.startswith("vehicle_id_")
    assert {"digits", "in_shop", "roxford", "rparis", "vehicle_id"} <= set(vicinal.data.__all__)


def test_an_unknown_name_is_answered_with_all() -> None:
    with pytest.raises(InputError, match=r"birds: no such folder, file or benchmark; the benchmarks are") as caught:
        load_table("birds")
    assert all(name in str(caught.value) for name in BENCHMARKS)
