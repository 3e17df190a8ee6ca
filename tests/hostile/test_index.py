"""Index folders that somebody made to do harm, or that are damaged: one line each, in little memory and time."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pandas as pd
import pytest
import torch

from vicinal.cli.main import main
from vicinal.data import Table, save_embeddings
from vicinal.models import ContextRefiner
from vicinal.retrieval import Index
from vicinal.retrieval.index.storage import CONFIG, _name_of

ROWS, DIM, MEMORY = 40, 8, 2**30

Change = Callable[[Path], object]


def vectors(rows: int = ROWS) -> np.ndarray:
    made = np.random.default_rng(0).standard_normal((rows, DIM)).astype(np.float32)
    return made / np.linalg.norm(made, axis=1, keepdims=True)


def build(folder: Path, kind: str = "exact", rows: int = ROWS) -> Path:
    table = Table(
        pd.DataFrame({"path": [f"{number}.png" for number in range(rows)], "label": ["a", "b"] * (rows // 2)})
    )
    refiner = ContextRefiner(DIM, num_heads=2) if kind == "refined" else None
    Index.build(vectors(rows), table, "exact" if kind == "refined" else kind, refiner=refiner).save(folder)  # type: ignore[arg-type]
    return folder


def part_of(folder: Path, part: str) -> Path:
    return folder / json.loads((folder / CONFIG).read_text())["files"][part]


def config_with(**values: object) -> Change:
    """Change the config of an index."""

    def change(folder: Path) -> None:
        config = json.loads((folder / CONFIG).read_text())
        (folder / CONFIG).write_text(json.dumps({**config, **values}))

    return change


def config_is(text: str) -> Change:
    return lambda folder: (folder / CONFIG).write_text(text)


def replace_part(folder: Path, part: str, data: bytes) -> None:
    """Replace a data file, with the name that belongs to its content."""
    name = _name_of(part, data)
    (folder / name).write_bytes(data)
    files = json.loads((folder / CONFIG).read_text())["files"]
    config_with(files={**files, part: name})(folder)


def vectors_are(make: Callable[[bytes], bytes]) -> Change:
    """Change the file of faiss."""
    return lambda folder: replace_part(folder, "vectors", make(part_of(folder, "vectors").read_bytes()))


def of_faiss(make: Callable[[], Any], rows: np.ndarray | None = None) -> Change:
    """Replace the file of faiss by that of another index of faiss."""

    def serialized(_: bytes) -> bytes:
        index = make()
        index.add(vectors() if rows is None else rows)
        return bytes(faiss.serialize_index(index).tobytes())

    return vectors_are(serialized)


def number_at(position: int, form: str, value: float) -> Change:
    def change(data: bytes) -> bytes:
        return data[:position] + struct.pack(form, value) + data[position + struct.calcsize(form) :]

    return vectors_are(change)


def metadata_with(**columns: object) -> Change:
    def change(folder: Path) -> None:
        frame = pd.read_parquet(part_of(folder, "metadata")).assign(**columns)
        frame.to_parquet(folder / "new", index=False)
        replace_part(folder, "metadata", (folder / "new").read_bytes())

    return change


def replaced_by(part: str, special: Callable[[Path], object]) -> Change:
    """Put something that is no file in the place of a part."""

    def change(folder: Path) -> None:
        path = folder / CONFIG if part == CONFIG else part_of(folder, part)
        path.unlink()
        special(path)

    return change


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**42)


def nested(data: bytes) -> bytes:
    """Graphs within graphs; faiss follows them to any depth."""
    graph = bytes(faiss.serialize_index(faiss.IndexHNSWFlat(DIM, 32, faiss.METRIC_INNER_PRODUCT)).tobytes())
    return graph[: graph.index(b"IxFI")] * 20_000 + graph[graph.index(b"IxFI") :]


def with_other_ids(data: bytes) -> bytes:
    index = faiss.IndexIDMap2(faiss.IndexFlatIP(DIM))
    index.add_with_ids(vectors(), np.arange(ROWS) + 100)
    return bytes(faiss.serialize_index(index).tobytes())


def at(position: int, form: str, value: float) -> Callable[[bytes], bytes]:
    """Put a number into bytes."""
    return lambda data: data[:position] + struct.pack(form, value) + data[position + struct.calcsize(form) :]


def of_kind(kind: str, part: str, make: Callable[[bytes], bytes]) -> Change:
    """Make an index of another kind, and change one of its files."""

    def change(folder: Path) -> None:
        shutil.rmtree(folder)
        build(folder, kind)
        replace_part(folder, part, make(part_of(folder, part).read_bytes()))

    return change


def both(first: Change, second: Change) -> Change:
    return lambda folder: (first(folder), second(folder))


def nan_in_lists(data: bytes) -> bytes:
    """The numbers of the first code are NaN; lists begin after `full`, their sizes after a length."""
    start = data.index(b"full") + 4
    (lists,) = struct.unpack_from("<Q", data, start)
    return at(start + 8 + 8 * lists + 1, "<f", np.nan)(data)


def damaged_originals(folder: Path) -> None:
    shutil.rmtree(folder)
    build(folder, "sq8")
    path = part_of(folder, "originals")
    path.write_bytes(bytes(len(path.read_bytes())))


IDS = pd.date_range("2020-01-01", periods=ROWS)
DAMAGED = "the index is damaged; build it again ("
NO_CONFIG = "is not the config of an index: it is not JSON"
METRIC = DAMAGED + "it compares by another metric than the inner product"
UNNAMED = "is damaged: it does not name the index's files; build the index again"

CASES: list[tuple[str, str, Change, str]] = [
    ("config", "deep lists", config_is("[" * 100_000), NO_CONFIG),
    ("config", "deep objects", config_is('{"a":' * 100_000), NO_CONFIG),
    ("config", "long number", config_is('{"format": ' + "9" * 10_000 + "}"), NO_CONFIG),
    ("config", "2 MB", config_is('"' + "a" * 2**21 + '"'), "is not the config of an index"),
    ("config", "no text", lambda folder: (folder / CONFIG).write_bytes(b"\xff\xfe"), NO_CONFIG),
    ("config", "version is a list", config_with(version=[1]), "has version [1]; this Vicinal reads versions 1 to 4"),
    ("config", "files of another folder", config_with(files={"vectors": "../v", "metadata": "m"}), UNNAMED),
    ("config", "files with a null character", config_with(files={"vectors": "v\0", "metadata": "m"}), UNNAMED),
    ("config", "files that are lists", config_with(files={"vectors": [], "metadata": {}}), UNNAMED),
    ("config", "kind is a list", config_with(kind=["exact"]), DAMAGED),
    ("config", "images are text", config_with(images="40"), DAMAGED),
    ("config", "calibration is a list", config_with(calibration=[1]), DAMAGED + "it is no calibration"),
    ("config", "calibration without values", config_with(calibration={"format": "vicinal-calibration", "version": 1}),
     DAMAGED),
    ("config", "made with a list", config_with(made_with=[1]), DAMAGED + "what it was made with is not text"),
    ("config", "made with other flags", config_with(made_with={"images": "9"}), DAMAGED + "what it was made with"),
    ("config", "missing keys", config_is('{"format": "vicinal-index", "version": 1}'), UNNAMED),
    ("special file", "config is a pipe", replaced_by(CONFIG, os.mkfifo), "config.json is not a regular file"),
    ("special file", "config is endless", replaced_by(CONFIG, lambda p: p.symlink_to("/dev/zero")), "not a regular"),
    ("special file", "vectors are a pipe", replaced_by("vectors", os.mkfifo), "is not a regular file"),
    ("special file", "vectors are endless", replaced_by("vectors", lambda p: p.symlink_to("/dev/zero")), "regular"),
    ("special file", "vectors are a folder", replaced_by("vectors", Path.mkdir), "is not a regular file"),
    ("special file", "vectors have 4 TB", replaced_by("vectors", sparse), "about 8,796.1 GB of memory are needed"),
    ("special file", "metadata have 4 TB", replaced_by("metadata", sparse), "about 8,796.1 GB of memory are needed"),
    ("faiss", "vectors beyond the file", number_at(8, "<q", 2**27), "134,217,728 vectors of 8 dimensions, at least 4"),
    ("faiss", "vectors beyond 64 bits", number_at(8, "<q", 2**62), "GB, but the file has 0.000"),
    ("faiss", "dimensions beyond the file", number_at(4, "<i", 2**30), "40 vectors of 1,073,741,824 dimensions"),
    ("faiss", "less than no vectors", number_at(8, "<q", -1), DAMAGED + "its header is impossible"),
    ("faiss", "no dimensions", number_at(4, "<i", 0), DAMAGED + "its header is impossible"),
    ("faiss", "not trained", number_at(32, "<B", 0), DAMAGED + "its header is impossible"),
    ("faiss", "array beyond the file", number_at(37, "<q", 2**34), "17,179,869,184 values where there must be 320"),
    ("faiss", "cut", vectors_are(lambda data: data[:-5]), "1,280 bytes are missing where 1,275 are left"),
    ("faiss", "more than one", vectors_are(lambda data: data * 2), "1,325 bytes follow its end"),
    ("faiss", "empty", vectors_are(lambda data: b""), DAMAGED + "it is not an exact, hnsw, sq8, ivfpq"),
    ("faiss", "another kind", of_faiss(lambda: faiss.IndexLSH(DIM, 16)), DAMAGED + "it is not an exact"),
    ("faiss", "other ids", vectors_are(with_other_ids), DAMAGED + "it is not an exact"),
    ("faiss", "Euclidean distances", of_faiss(lambda: faiss.IndexFlatL2(DIM)), DAMAGED + "it is not an exact"),
    ("faiss", "Euclidean metric", number_at(33, "<i", 1), METRIC),
    ("faiss", "Euclidean graph", of_faiss(lambda: faiss.IndexHNSWFlat(DIM, 8)), METRIC),
    (
        "faiss",
        "vectors of other lengths",
        of_faiss(lambda: faiss.IndexFlatIP(DIM), 3 * vectors()),
        "its vector 0 has length 3; all must have length 1",
    ),
    (
        "faiss",
        "NaN",
        of_faiss(lambda: faiss.IndexFlatIP(DIM), np.full((ROWS, DIM), np.nan, np.float32)),
        "its vector 0 has length nan",
    ),
    (
        "faiss",
        "other dimensions",
        of_faiss(lambda: faiss.IndexFlatIP(4), vectors()[:, :4] * 0),
        DAMAGED + "its files do not belong together",
    ),
    ("faiss", "graphs within graphs", vectors_are(nested), DAMAGED + "it has another index inside"),
    ("codes", "empty bits", of_kind("binary", "vectors", lambda data: b""), DAMAGED + "it is not a binary index"),
    ("codes", "bits beyond the file", of_kind("binary", "vectors", at(12, "<Q", 2**60)), "it is not a binary index"),
    ("codes", "bits of no dimension", of_kind("binary", "vectors", at(20, "<Q", 0)), "it is not a binary index"),
    ("codes", "means that are NaN", of_kind("binary", "vectors", at(28, "<f", np.nan)), "its means are not those of"),
    ("codes", "another quantizer", of_kind("sq8", "vectors", at(37, "<i", 4)), "its scalar quantizer is of another"),
    ("codes", "ranges that are large", of_kind("sq8", "vectors", at(73, "<f", 1e30)), "its ranges are not those"),
    ("codes", "codes beyond the file", of_kind("sq8", "vectors", at(8, "<q", 2**40)), "1,099,511,627,776 vectors"),
    ("codes", "numbers that are NaN", of_kind("rabitq", "vectors", nan_in_lists), DAMAGED + "it holds NaN or infinity"),
    ("codes", "lists beyond the file", of_kind("rabitq", "vectors", at(37, "<Q", 2**40)), "centroids differ"),
    ("codes", "originals are cut", of_kind("sq8", "originals", lambda data: data[:-16]), "its size is not that of"),
    ("codes", "originals are NaN", of_kind("sq8", "originals", lambda data: b"\xff" * len(data)), "holds NaN or inf"),
    ("codes", "originals are damaged", damaged_originals, "its content is not what was written"),
    ("codes", "originals have 4 TB", both(of_kind("sq8", "originals", bytes), replaced_by("originals", sparse)),
     "its size is not that of the index's vectors"),
    ("codes", "rescore is text", both(of_kind("sq8", "originals", bytes), config_with(rescore="4")), "rescore is"),
    ("codes", "rescore is large", both(of_kind("sq8", "originals", bytes), config_with(rescore=10**9)), "to 10,000"),
    ("codes", "kind is another", both(of_kind("sq8", "originals", bytes), config_with(kind="binary")),
     DAMAGED + "it is not a binary index"),
    ("ids", "floats", metadata_with(id=np.arange(ROWS) + 0.0), DAMAGED + "its ids are float64, they must be int64"),
    ("ids", "text", metadata_with(id=list(map(str, range(ROWS)))), DAMAGED + "its ids are str, they must be int64"),
    ("ids", "dates", metadata_with(id=IDS), DAMAGED + "its ids are datetime64"),
    ("ids", "missing", metadata_with(id=[None, *range(1, ROWS)]), DAMAGED + "its ids are float64"),
    ("ids", "lists", metadata_with(id=[[number] for number in range(ROWS)]), DAMAGED + "its ids are object"),
    ("ids", "twice", metadata_with(id=[0, 0, *range(2, ROWS)]), DAMAGED + "its files do not belong together"),
    ("ids", "beyond the vectors", metadata_with(id=np.arange(1, ROWS + 1)), DAMAGED + "its files do not belong"),
    ("ids", "below none", metadata_with(id=np.arange(-1, ROWS - 1)), DAMAGED + "its files do not belong"),
    (
        "metadata",
        "not Parquet",
        lambda folder: replace_part(folder, "metadata", b"PAR1"),
        "not a Parquet file that can be read",
    ),
    (
        "metadata",
        "vectors",
        lambda folder: replace_part(folder, "metadata", part_of(folder, "vectors").read_bytes()),
        "not a Parquet file that can be read",
    ),
    (
        "metadata",
        "a long text in every row",
        lambda folder: metadata_of(folder, pd.DataFrame({"id": range(5000), "path": ["a" * 120_000] * 5000})),
        "GB of memory are needed",
    ),
]  # fmt: skip


def metadata_of(folder: Path, frame: pd.DataFrame) -> None:
    frame.to_parquet(folder / "new", index=False, compression="zstd")
    replace_part(folder, "metadata", (folder / "new").read_bytes())


def run_limited(target: Callable[[], None], seconds: float = 60) -> None:
    """Run in a process with a limit of memory and time; it must succeed."""

    def limited() -> None:
        faiss.omp_set_num_threads(1)  # the threads of the parent are not in a forked process
        torch.set_num_threads(1)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
        target()

    process = multiprocessing.get_context("fork").Process(target=limited)
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    assert process.exitcode == 0


@pytest.mark.parametrize(("kind", "case", "change", "expected"), CASES, ids=[f"{case[0]}: {case[1]}" for case in CASES])
def test_hostile_index_is_one_line(
    kind: str, case: str, change: Change, expected: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    build(tmp_path / "index")
    change(tmp_path / "index")
    save_embeddings(tmp_path / "q.parquet", vectors(2), Table(pd.DataFrame(index=range(2))))

    def search() -> None:
        raise SystemExit(main(["search", str(tmp_path / "index"), str(tmp_path / "q.parquet")]) - 2)

    run_limited(search)
    captured = capfd.readouterr()
    assert len(captured.err.splitlines()) == 1, captured.err
    assert expected in captured.err
    assert captured.out == ""
