"""`vicinal evaluate` of stored embeddings: mapped into memory, never copied, and divided among processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from vicinal import Index, Table
from vicinal.data import save_embeddings
from vicinal.workflows.embedding_reader import EmbeddingReader

ROWS, DIM = 100_000, 512  # 205 MB
FREE = 150 * 2**20  # that may be allocated, for tables and scores
# Evaluates small embeddings, which imports and compiles what is needed, and large ones with little memory.
PROGRAM = """
import re, resource, sys
from pathlib import Path
from vicinal.cli.main import main
small, free, *sources = sys.argv[1:]
assert main(["evaluate", small, "--json"]) == 0
for words in sources:
    used = int(re.search(r"VmData:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (used + int(free), resource.RLIM_INFINITY))
    assert main(["evaluate", *words.split(), "--recall_at", "1", "--json"]) == 0
"""


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


def table(rows: int, queries: int) -> Table:
    number = np.arange(rows)
    return Table(pd.DataFrame({"label": number % 50, "is_query": number < queries, "is_gallery": number >= 10}))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_embeddings_are_never_copied_as_a_whole(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).standard_normal((ROWS, DIM), dtype=np.float32)
    many = table(ROWS, queries=60)
    for name in ("x.npy", "x.parquet"):
        save_embeddings(tmp_path / name, vectors, many)
    np.save(tmp_path / "half.npy", vectors.astype(np.float16))
    many.frame.assign(split=np.where(np.arange(ROWS) % 7, "test", "train")).to_parquet(tmp_path / "labels.parquet")
    save_embeddings(tmp_path / "small.parquet", vectors[:300], table(300, queries=60))
    half = f"--embeddings {tmp_path}/half.npy --labels {tmp_path}/labels.parquet --split test --dim 500"
    words = [tmp_path / "x.npy", tmp_path / "x.parquet", half]
    command = [sys.executable, "-c", PROGRAM, tmp_path / "small.parquet", FREE, *words]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=environment(TMPDIR=str(tmp_path)))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"recall@1"') == 4


def test_mapped_embeddings_are_those_that_are_copied(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vectors, some = rng.standard_normal((300, 6)).astype(np.float32), table(300, queries=60)
    some = Table(some.frame.assign(split=rng.choice(["val", "test"], 300), label=np.arange(300) % 9))
    for name in ("x.npy", "x.parquet"):
        save_embeddings(tmp_path / name, vectors, some)
    np.save(tmp_path / "half.npy", vectors.astype("<f2"))
    np.save(tmp_path / "large.npy", vectors.astype(">f8"))
    np.save(tmp_path / "transposed.npy", np.asfortranarray(vectors))
    Index.build(vectors, some).save(tmp_path / "index")
    for path in sorted(tmp_path.iterdir()):
        if path.suffix in (".npy", ".parquet", ""):
            for options in ({}, {"where": "label < 4"}, {"dim": 3}):
                if "where" in options and path.name in ("half.npy", "large.npy", "transposed.npy"):
                    continue  # has no labels
                copied, mapped = (EmbeddingReader(mapped=each, **options).embed(str(path)) for each in (False, True))
                np.testing.assert_array_equal(mapped.vectors, copied.vectors, str(path))
                assert mapped.vectors.dtype == np.float32
                assert is_mapped(mapped.vectors), (path, options)
                assert not is_mapped(copied.vectors), (path, options)
                pd.testing.assert_frame_equal(mapped.table.frame, copied.table.frame)


def is_mapped(array: np.ndarray | None) -> bool:
    """Whether an array is a view of a memory map."""
    return isinstance(array, np.memmap) or (isinstance(array, np.ndarray) and is_mapped(array.base))


def run(*words: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "vicinal", "evaluate", *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())


@pytest.mark.slow
def test_two_processes_print_what_one_does(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 90, 900)
    vectors = (rng.standard_normal((90, 8))[labels] + rng.standard_normal((900, 8))).round(1)
    save_embeddings(tmp_path / "x.parquet", vectors, Table(pd.DataFrame({"label": labels, "coarse": labels // 10})))
    words = (tmp_path / "x.parquet", "--intervals", "--hierarchy", "--group_by", "coarse", "--json", "--per_query")
    outputs = []
    for number, more in enumerate(((), ("--devices", 2))):
        process = run(*words, tmp_path / f"{number}.csv", *more)
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        assert errors == f"wrote {tmp_path}/{number}.csv\n"
        outputs.append((json.loads(output), (tmp_path / f"{number}.csv").read_text()))
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--devices", 2, "--rerank", "reciprocal"), "leave out --rerank"),
        (("--devices", 2, "--clusters"), "leave out --clusters"),
        (("--devices", 0), "0 is not an integer from 1 up"),
        (("--devices", 2000), "divide by at most as many"),
    ],
)
def test_what_cannot_be_divided_is_refused(words: tuple[object, ...], message: str, tmp_path: Path, capsys) -> None:
    from vicinal.cli.main import main

    save_embeddings(tmp_path / "x.parquet", np.eye(4), Table(pd.DataFrame({"label": [0, 0, 1, 1]})))
    try:
        status = main(["evaluate", str(tmp_path / "x.parquet"), *map(str, words)])
    except SystemExit as stopped:
        status = int(str(stopped.code))
    assert status == 2
    assert message in capsys.readouterr().err


def test_images_are_embedded_before_they_are_divided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from vicinal.cli.main import main

    (tmp_path / "photos").mkdir()
    assert main(["evaluate", str(tmp_path / "photos"), "--model", "timm/resnet18", "--devices", "2"]) == 2
    assert "holds images; write their embeddings to a file first" in capsys.readouterr().err
