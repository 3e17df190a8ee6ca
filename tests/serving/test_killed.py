"""Services and `index add` that are killed at any moment (SIGKILL) lose nothing, also under load."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.serving_soak import soak
from tests.conftest import ROOT
from tests.serving.killed import PER_COMMAND
from tests.serving.service import random_vectors, save_index
from vicinal import Index


@pytest.mark.parametrize("rounds", [2, pytest.param(60, marks=pytest.mark.slow)])
def test_nothing_acknowledged_is_lost(rounds: int, tmp_path: Path) -> None:
    folder = save_index(tmp_path)
    program = [sys.executable, "-m", "tests.serving.killed", str(folder), str(rounds)]
    output = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert output.returncode == 0, output.stderr[-2000:]
    reports = [line.split() for line in output.stdout.splitlines()]
    added = {int(number): int(seed) for kind, number, seed in reports if kind == "added"}
    deleted, tried, commands = (
        {int(number) for kind, number, _ in reports if kind == wanted} for wanted in ("deleted", "tried", "command")
    )
    assert len(added) == sum(kind == "added" for kind, *_ in reports), "an id was given twice"
    assert len({seed // 100_000 for seed in added.values()}) == rounds
    assert deleted
    assert commands
    index = Index.load(folder)
    frame = index.metadata.frame.set_index("id")
    assert not deleted & set(frame.index)
    left = [number for number in added if number not in tried]
    assert frame.loc[left, "price"].tolist() == [added[number] for number in left]
    expected = np.concatenate([random_vectors(1, added[number]) for number in left])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(index.query_vectors(left), expected, atol=1e-6)
    for seed in commands:
        ids = index.ids_at(f"/command/{seed}")
        vectors = random_vectors(PER_COMMAND, seed)
        assert len(ids) == PER_COMMAND
        found = index.search(vectors, 1).ids.ravel()
        assert sorted(found.tolist()) == ids.tolist()


@pytest.mark.slow
def test_nothing_leaks_is_lost_or_fails(tmp_path: Path) -> None:
    assert soak(tmp_path, total=4_000, num_kills=2) == []
