"""An evaluation that is interrupted goes on from its checkpoint, with the results of one that was not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.evaluation.test_division import photos
from vicinal import Table
from vicinal.evaluation import Evaluation, evaluate, ranking
from vicinal.evaluation.counting import checkpoint
from vicinal.evaluation.counting.checkpoint import CountCheckpoint, holding_checkpoint
from vicinal.evaluation.counting.device_counter import DeviceCounter
from vicinal.retrieval import ReciprocalReranking
from vicinal.utils.errors import InputError

PROTOCOLS = ["leave one out", "groups", "queries and gallery"]


@pytest.fixture(autouse=True)
def small_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "MAX_COUNTED", 9000)
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN_SAVES", 0.0)


def evaluated(protocol: str, folder: Path | None, vectors: np.ndarray | None = None, **more: Any) -> Evaluation:
    found, columns = photos()
    table = Table(pd.DataFrame(columns[protocol]))
    options: dict[str, Any] = {"metrics": ["MRR"], "hierarchy": True, "chunk_size": 64, "checkpoint": folder, **more}
    return evaluate(found if vectors is None else vectors, table, [1, 5], **options)


def interrupt(monkeypatch: pytest.MonkeyPatch, after: int) -> list[int]:
    """Let counting end with an exception after some rows of tiles; what is returned lists those that were counted."""
    counted: list[int] = []
    original = CountCheckpoint.uncounted

    def uncounted(self: CountCheckpoint, tops: Iterable[int], total: int) -> Iterator[int]:
        for top in original(self, tops, total):
            if len(counted) == after:
                raise KeyboardInterrupt
            yield top
            counted.append(top)

    monkeypatch.setattr(CountCheckpoint, "uncounted", uncounted)
    return counted


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_it_goes_on_where_it_was(
    protocol: str, on_device: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if on_device:
        monkeypatch.setattr(ranking, "_counter", lambda *given: DeviceCounter(*given))
    expected = evaluated(protocol, None)
    with monkeypatch.context() as patch:
        every = interrupt(patch, after=-1)
        evaluated(protocol, tmp_path / "whole")
    rest = []
    for after in (3, 2, -1):  # the second panel begins after some of them
        with monkeypatch.context() as patch:
            counted = interrupt(patch, after)
            if after > 0:
                with pytest.raises(KeyboardInterrupt):
                    evaluated(protocol, tmp_path / "counts")
                assert len(counted) == after
            else:
                found = evaluated(protocol, tmp_path / "counts")
        rest += counted
    assert len(every) >= 6
    assert rest == every  # nothing is counted twice
    for name, values in expected.per_query.items():
        np.testing.assert_array_equal(found.per_query[name], values, name)
    assert (found.metrics, found.num_ties) == (expected.metrics, expected.num_ties)


def test_it_is_not_written_more_often_than_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "SECONDS_BETWEEN_SAVES", 1000.0)
    saves: list[int] = []
    monkeypatch.setattr(CountCheckpoint, "_save", lambda self, done: saves.append(done))
    list(CountCheckpoint(tmp_path, 0, 0, "", []).uncounted(range(0, 70, 10), 7))
    assert saves == [7]


def test_a_checkpoint_of_another_evaluation_is_refused(tmp_path: Path) -> None:
    evaluated("groups", tmp_path)
    vectors = photos()[0].copy()
    vectors[-1] += 1  # in the gallery only
    for protocol, more in (
        ("groups", {"vectors": vectors}),
        ("groups", {"chunk_size": 128}),
        ("groups", {"hierarchy": False}),
        ("leave one out", {}),
        ("queries and gallery", {}),
    ):
        with pytest.raises(InputError, match=f"{tmp_path} holds the checkpoint of another evaluation"):
            evaluated(protocol, tmp_path, **more)
    array = BytesIO()
    np.save(array, np.zeros(3))
    encrypted = bytearray(next(tmp_path.glob("*.npz")).read_bytes())
    encrypted[encrypted.index(b"PK\x01\x02", encrypted.index(b"PK\x01\x02") + 1) + 8] |= 1  # one bit of the directory
    for damaged in (b"", b"PK\x03\x04 no zip", b"\x93NUMPY", array.getvalue(), encrypted):
        next(tmp_path.glob("*.npz")).write_bytes(damaged)
        with pytest.raises(InputError, match="another evaluation"):
            evaluated("groups", tmp_path)
    with pytest.raises(InputError, match="re-ranking has no checkpoints"):
        evaluated("leave one out", tmp_path, hierarchy=False, rerank=ReciprocalReranking())


def test_its_files_are_deleted_and_no_others(tmp_path: Path) -> None:
    with holding_checkpoint(tmp_path / "counts"):
        evaluated("groups", tmp_path / "counts")
        for name in (
            "notes.txt",
            "counts-of-birds.npz",
            ".counts-0-0.npz.0123abcd.tmp",
        ):  # the last of a killed process
            (tmp_path / "counts" / name).touch()
    assert {path.name for path in (tmp_path / "counts").iterdir()} >= {"notes.txt", "counts-of-birds.npz"}
    assert not list((tmp_path / "counts").glob("*counts-0*"))


def test_one_command_at_a_time_has_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "counts"
    with suppress(KeyboardInterrupt), holding_checkpoint(folder):
        with pytest.raises(InputError, match=f"cannot evaluate with the checkpoint {folder}: another process"):
            holding_checkpoint(folder).__enter__()
        evaluated("groups", folder)
        raise KeyboardInterrupt
    assert list(folder.glob("counts-*"))
    with holding_checkpoint(folder):
        pass
    assert not folder.exists()
    with suppress(KeyboardInterrupt), holding_checkpoint(folder):
        raise KeyboardInterrupt  # before anything is counted
    assert not folder.exists()
    folder.touch()
    with pytest.raises(InputError, match="counts: is no folder"):
        holding_checkpoint(folder).__enter__()
