"""Indexes that are built in batches: the same as at once, after a kill at any moment, and in bounded memory."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from tests.retrieval.index.test_index import table, unit
from vicinal.cli.main import main
from vicinal.data import Table, save_embeddings
from vicinal.retrieval import Index, UnitVectors
from vicinal.retrieval.index import staged_build
from vicinal.retrieval.index.build_progress import STAGE
from vicinal.retrieval.index.engines import faiss_engine
from vicinal.utils.errors import InputError
from vicinal.utils.locks import hold_lock

ROWS, BATCH = 1000, 300


class Killed(BaseException):
    """Simulates kill -9: nothing that runs after it changes the disk."""


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_build, "BATCH_ROWS", BATCH)
    monkeypatch.setattr(staged_build, "BLOCK_ROWS", 100)


def files(folder: Path) -> list[str]:
    """The files of an index; their names tell what they hold."""
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def dies_at(patch: pytest.MonkeyPatch, moment: int) -> None:
    """Let the process be killed at its n-th change of the disk that others can see, with half a block written."""
    left = itertools.count(moment, -1)

    def mortal(function: Callable[..., object]) -> Callable[..., object]:
        def replacement(*args: object, **kwargs: object) -> object:
            if next(left) <= 0:
                patch.setattr(staged_build.shutil, "rmtree", lambda path: None)
                raise Killed
            return function(*args, **kwargs)

        return replacement

    for name in ("fsync", "replace", "link"):
        patch.setattr(os, name, mortal(getattr(os, name)))


@pytest.mark.parametrize("rescore", [None, 0])
@pytest.mark.parametrize("kind", ["sq8", "rabitq", "binary"])
def test_an_index_in_batches_is_the_one_of_memory(kind: str, rescore: int | None, tmp_path: Path) -> None:
    vectors = unit(ROWS, dim=12)
    Index.build(vectors, table(ROWS), kind, "0123abcd", rescore=rescore).save(tmp_path / "memory")
    built = Index.build(vectors, table(ROWS), kind, "0123abcd", rescore=rescore, folder=tmp_path / "batches")
    assert files(tmp_path / "memory") == files(tmp_path / "batches")
    assert (tmp_path / "memory/config.json").read_text() == (tmp_path / "batches/config.json").read_text()
    built.delete([7])
    built.save(tmp_path / "batches")  # it may be changed and saved as one that was loaded
    assert len(Index.load(tmp_path / "batches")) == ROWS - 1


def test_ivfpq_in_batches_is_the_one_of_memory(tmp_path: Path) -> None:
    vectors = unit(10_000)
    Index.build(vectors, table(10_000), "ivfpq").save(tmp_path / "memory")
    Index.build(vectors, table(10_000), "ivfpq", folder=tmp_path / "batches")
    assert files(tmp_path / "memory") == files(tmp_path / "batches")


@pytest.mark.parametrize("is_there", [False, True])
def test_a_build_goes_on_after_a_kill_at_any_moment(is_there: bool, tmp_path: Path) -> None:
    vectors, old = unit(500), Index.build(unit(5), table(5), "rabitq")
    Index.build(vectors, table(500), "rabitq").save(tmp_path / "whole")
    moments_with_old = 0
    for moment in itertools.count():
        folder = tmp_path / str(moment)
        if is_there:
            old.save(folder)
        try:
            with pytest.MonkeyPatch.context() as patch:
                dies_at(patch, moment)
                Index.build(vectors, table(500), "rabitq", folder=folder, overwrite=True)
        except Killed:
            if is_there:
                moments_with_old += len(Index.load(folder)) == 5
            elif not (folder / "config.json").exists():
                with pytest.raises(
                    InputError,
                    match=r"is not an index yet: .*; wait for its build, or repeat the command",
                ):
                    Index.load(folder)
        else:
            break
        Index.build(vectors, table(500), "rabitq", folder=folder, overwrite=True)
        assert files(folder) == files(tmp_path / "whole"), moment
        assert Index.load(folder).search(vectors[:3], 1).ids.ravel().tolist() == [0, 1, 2]
    assert moment >= 15
    assert not is_there or moments_with_old >= 15


def interrupted(folder: Path, vectors: np.ndarray, kind: str = "rabitq") -> None:
    """A build of which two batches are saved, and half a block of the third is written."""
    with pytest.MonkeyPatch.context() as patch:
        write, blocks = staged_build.StagedBuild._write, itertools.count()

        def half(self: object, opened: dict, codes: object, block: np.ndarray) -> None:
            if next(blocks) < 2 * BATCH // 100:
                return write(self, opened, codes, block)
            write(self, opened, codes, block[:50])
            opened[staged_build.CODES].write(b"half a code")
            raise Killed

        patch.setattr(staged_build.StagedBuild, "_write", half)
        with pytest.raises(Killed):
            Index.build(vectors, table(len(vectors)), kind, folder=folder)


def test_only_what_was_not_saved_is_encoded_again(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = unit(ROWS)
    Index.build(vectors, table(ROWS), "rabitq").save(tmp_path / "whole")
    interrupted(tmp_path / "index", vectors)
    encode, rows = faiss_engine.FaissEngine.encode, []
    monkeypatch.setattr(
        faiss_engine.FaissEngine, "encode", lambda self, block: rows.append(len(block)) or encode(self, block)
    )
    monkeypatch.setattr(staged_build, "create_codes", None)  # nothing is trained again
    Index.build(vectors, table(ROWS), "rabitq", folder=tmp_path / "index")
    assert sum(rows) == ROWS - 2 * BATCH
    assert "going on with the build of the index after 600 of 1,000 vectors" in capsys.readouterr().err
    assert files(tmp_path / "index") == files(tmp_path / "whole")


@pytest.mark.parametrize("change", ["vector", "kind", "rescore", "codes", "trained"])
def test_another_build_begins_anew(change: str, tmp_path: Path, capsys) -> None:
    vectors, kind = unit(ROWS), "sq8" if change == "kind" else "rabitq"
    interrupted(tmp_path / "index", vectors)
    if change == "vector":
        vectors[-1] = vectors[0]
    if change in ("codes", "trained"):
        os.truncate(tmp_path / "index" / STAGE / change, 10)
    rescore = 0 if change == "rescore" else None
    Index.build(vectors, table(ROWS), kind, rescore=rescore, folder=tmp_path / "index")
    assert "going on" not in capsys.readouterr().err
    Index.build(vectors, table(ROWS), kind, rescore=rescore).save(tmp_path / "whole")
    assert files(tmp_path / "index") == files(tmp_path / "whole")


def test_quantizers_of_another_build_are_not_mixed_in(tmp_path: Path) -> None:
    vectors, others = unit(ROWS), unit(ROWS, seed=1)
    Index.build(vectors, table(ROWS), "rabitq").save(tmp_path / "whole")
    for moment in range(4):  # of the second build: up to its first progress
        folder = tmp_path / str(moment)
        interrupted(folder, vectors)
        with pytest.MonkeyPatch.context() as patch:
            dies_at(patch, moment)
            with pytest.raises(Killed):
                Index.build(others, table(ROWS), "rabitq", folder=folder)
        Index.build(vectors, table(ROWS), "rabitq", folder=folder)
        assert files(folder) == files(tmp_path / "whole"), moment


def test_the_command_maps_its_source_and_says_how_to_go_on(tmp_path: Path, capsys, monkeypatch) -> None:
    save_embeddings(tmp_path / "v.npy", unit(ROWS), table(ROWS))
    interrupted(tmp_path / "index", unit(ROWS))
    assert main(["search", str(tmp_path / "index"), str(tmp_path / "v.npy")]) == 2
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert message.endswith("600 of 1,000 vectors are done; wait for its build, or repeat the command to go on with it")
    build, given = Index.build.__func__, []
    monkeypatch.setattr(Index, "build", classmethod(lambda cls, v, *a, **k: given.append(v) or build(cls, v, *a, **k)))
    assert main(["index", str(tmp_path / "index"), "--source", str(tmp_path / "v.npy"), "--kind", "rabitq"]) == 0
    assert [type(each.base) for each in given] == [np.memmap]
    assert "going on" in capsys.readouterr().err
    assert len(Index.load(tmp_path / "index")) == ROWS


def test_few_rows_are_in_memory_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, taken = [], []
    block, take = UnitVectors.block, UnitVectors.take
    monkeypatch.setattr(UnitVectors, "block", lambda self, a, b: sizes.append(b - a) or block(self, a, b))
    monkeypatch.setattr(UnitVectors, "take", lambda self, rows: taken.append(rows) or take(self, rows))
    monkeypatch.setattr(faiss_engine, "MAX_SAMPLE", 2000)
    monkeypatch.setattr(faiss_engine, "MIN_PER_CENTROID", 5)
    monkeypatch.setattr(faiss_engine, "BLOCK_ROWS", 512)
    Index.build(unit(20_000), table(20_000), "rabitq", folder=tmp_path)
    assert max(sizes) <= 4096
    rows = np.concatenate(taken)
    assert max(map(len, taken)) <= 512
    assert len(rows) == len(np.unique(rows)) == max(2000, 5 * 565)  # 565 lists: four times the square root of 20,000
    assert (
        len(np.unique(np.diff(rows))) > 10
    )  # spread at random, so that a period in the order of the rows does no harm


def test_what_cannot_be_built_leaves_nothing(tmp_path: Path) -> None:
    for kind, message in (
        ("exact", "built in batches is sq8, ivfpq"),
        ("ivfpq", "needs 9,984 vectors"),
        ("auto", "auto"),
    ):
        with pytest.raises(InputError, match=message):
            Index.build(unit(50), table(50), kind, folder=tmp_path / "index")
        assert not (tmp_path / "index").exists()
    with pytest.raises(InputError, match="one row per vector"):
        Index.build(unit(50), table(49), "sq8", folder=tmp_path / "index")
    Index.build(unit(50), table(50), "sq8", folder=tmp_path / "index")
    with pytest.raises(InputError, match="is an index already"):
        Index.build(unit(50), Table(table(50).frame), "sq8", folder=tmp_path / "index")
    (tmp_path / "index" / STAGE).mkdir()
    with (
        hold_lock(tmp_path / "index" / STAGE / ".lock", 0, "build"),
        pytest.raises(InputError, match="another process"),
    ):
        Index.build(unit(50), table(50), "sq8", folder=tmp_path / "index", overwrite=True)


@pytest.mark.parametrize("kind", ["binary", "exact"])
def test_a_build_that_was_killed_at_once_is_not_in_the_way(kind: Literal["binary", "exact"], tmp_path: Path) -> None:
    folder = tmp_path / "index"

    def build() -> None:
        if kind == "exact":
            Index.build(unit(50), table(50), kind).save(folder)
        else:
            Index.build(unit(50), table(50), kind, folder=folder, overwrite=True)

    for names in ((), (".lock",), (".lock", "trained")):
        (folder / STAGE).mkdir(parents=True)
        for name in names:
            (folder / STAGE / name).touch()
        with pytest.raises(InputError, match="it has no config" if not names else "its build has begun"):
            Index.load(folder)
        build()
        assert not (folder / STAGE).exists()
        assert len(Index.load(folder)) == 50
        shutil.rmtree(folder)
    (folder / STAGE).mkdir(parents=True)
    with pytest.raises(InputError, match="needs 9,984 vectors"):
        Index.build(unit(50), table(50), "ivfpq", folder=folder)
    assert not folder.exists()


def test_a_build_that_goes_on_is_not_disturbed(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    interrupted(folder, unit(ROWS))
    Index.build(unit(50), table(50), "exact").save(folder)
    assert files(folder / STAGE)
    (folder / STAGE / "build.json").unlink()
    with hold_lock(folder / STAGE / ".lock", 0, "build"):  # while quantizers are trained
        Index.build(unit(50), table(50), "exact").save(folder)
        assert files(folder / STAGE)
