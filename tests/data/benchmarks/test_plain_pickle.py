"""Pickles of plain data come out as they went in; any other is refused before it does anything."""

import functools
import pickle
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.refusals import refused_call
from vicinal.data.benchmarks.lists import read_plain_pickle
from vicinal.utils.errors import InputError


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def through(tmp_path: Path, value: object, protocol: int = 4) -> Any:
    return read_plain_pickle(written(tmp_path / "data.pkl", pickle.dumps(value, protocol)))


ARRAYS = [
    np.arange(5),
    np.arange(6, dtype=np.int32).reshape(2, 3),
    np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)),
    np.arange(10)[::2],
    np.array([1.5, np.inf]),
    np.array([True, False]),
    np.array([], dtype=np.uint8),
    np.arange(3, dtype=">i8"),
    np.array(7),
]


@pytest.mark.parametrize("protocol", range(6))
def test_arrays(tmp_path: Path, protocol: int) -> None:
    found = through(tmp_path, {"a": [*ARRAYS, *ARRAYS]}, protocol)["a"]
    for each, array in zip(found, [*ARRAYS, *ARRAYS], strict=True):
        assert (each.dtype.newbyteorder("="), each.shape) == (array.dtype.newbyteorder("="), array.shape)
        np.testing.assert_array_equal(each, array)


@pytest.mark.parametrize("protocol", range(6))
def test_plain_values(tmp_path: Path, protocol: int) -> None:
    value = {"imlist": ["a", "ü"], "n": 3, "big": 2**70, "x": -1.5, "t": True, "none": None, "deep": [[{}], []]}
    assert through(tmp_path, value, protocol) == value
    assert through(tmp_path, [(1, "a"), [np.int64(4), np.float32(0.5)]], protocol) == [[1, "a"], [4, 0.5]]
    assert type(through(tmp_path, [np.int64(4)], protocol)[0]) is int


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_of_texts_and_of_objects_are_lists(tmp_path: Path, protocol: int) -> None:
    assert through(tmp_path, np.array(["all_souls_000013", "ü"]), protocol) == ["all_souls_000013", "ü"]
    objects = np.array([{"easy": np.arange(2)}, "text"], dtype=object)
    found = through(tmp_path, objects, protocol)
    assert found[1] == "text"
    assert found[0]["easy"].tolist() == [0, 1]


def test_of_python_2(tmp_path: Path) -> None:
    """Protocol 2, whose texts and whose arrays' bytes are strings of that time."""
    array = b"".join(
        [
            b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR",
            b"(K\x01K\x02\x85cnumpy\ndtype\n(U\x02i8K\x00K\x01tR",
            b"(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89",
            b"U\x10" + struct.pack("<2q", 200, -7) + b"tb",
        ]
    )
    data = b"\x80\x02}(U\x04easy" + array + b"U\x04nameU\x03a\xfc!u."
    found = read_plain_pickle(written(tmp_path / "data.pkl", data))
    assert found["easy"].tolist() == [200, -7]
    assert found["name"] == "aü!"
    oldest = b"(dp0\nS'name'\np1\nS'a\\xfc!\xfc'\np2\ns."
    assert read_plain_pickle(written(tmp_path / "data.pkl", oldest)) == {"name": "aü!ü"}


class Calls:
    """Pickled as a call of any function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


def test_nothing_is_run(tmp_path: Path) -> None:
    import os
    import subprocess

    mark = tmp_path / "mark"
    for function, arguments in (
        (os.system, (f"touch {mark}",)),
        (subprocess.check_call, (["touch", str(mark)],)),
        (eval, (f"open({str(mark)!r}, 'w')",)),
        (open, (str(mark), "w")),
        (getattr, ("text", "upper")),
        (np.fromfile, (str(mark),)),
        (np.load, (str(mark),)),
        (functools.partial, (os.system, f"touch {mark}")),
        (Path, (str(mark),)),
    ):
        with pytest.raises(InputError, match=r"data\.pkl: not a pickle of plain data \(it asks for '[\w.]+'\)"):
            through(tmp_path, {"gnd": [Calls(function, *arguments)]})
    assert not mark.exists()


@pytest.mark.parametrize("protocol", [b"", b"\x80\x02", b"\x80\x04"])
def test_names_that_are_not_known_are_refused(tmp_path: Path, protocol: bytes) -> None:
    for name in (b"numpy.core.multiarray\nfromstring", b"numpy\nndarray.dump", b"numpy\nload", b"os\n\x1b[31m"):
        with pytest.raises(InputError, match="it asks for") as error:
            read_plain_pickle(written(tmp_path / "data.pkl", protocol + b"c" + name + b"\n."))
        assert str(error.value).isprintable()


def test_other_types_are_refused(tmp_path: Path) -> None:
    dates = np.array(["2020-01-01"], dtype="M8[D]")
    for value in (b"bytes", {1, 2}, 1j, OrderedDict(a=1), np.array([1j]), dates, slice(1), int):
        refused_call("not a pickle of plain data", through, tmp_path, [value])


def test_a_pickle_cannot_change_what_the_next_one_meets(tmp_path: Path) -> None:
    """State set on a function that the file was given: there are new ones for every load."""
    poison = b"\x80\x02c_codecs\nencode\n}U\x0c__defaults__K\x01sb."
    assert b"sb." in poison
    with pytest.raises(InputError):
        read_plain_pickle(written(tmp_path / "data.pkl", poison))
    assert through(tmp_path, np.arange(3), 2).tolist() == [0, 1, 2]


def test_broken_files(tmp_path: Path) -> None:
    for data in (b"", b"\x80\x04", b"no pickle at all", b"\x80\x04P1\n.", pickle.dumps([1] * 99)[:-9]):
        path = written(tmp_path / "data.pkl", data)
        refused_call(r"data\.pkl: not a pickle of plain data \(.+\)", read_plain_pickle, path)


def test_recursive_values_and_missing_files(tmp_path: Path) -> None:
    value: list[Any] = []
    value.append(value)
    refused_call("not a pickle of plain data", through, tmp_path, value)
    refused_call(r"lost\.pkl: no such file", read_plain_pickle, tmp_path / "lost.pkl")
