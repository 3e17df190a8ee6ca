"""A writer that is killed at any moment (SIGKILL) loses nothing that it has acknowledged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.conftest import ROOT
from tests.serving.service import random_vectors, save_index
from vicinal import Index
from vicinal.serving.store.folder_store import FolderStore

ROUNDS = 5


def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    folder = save_index(tmp_path)
    program = [sys.executable, "-m", "tests.serving.killed", str(folder), str(ROUNDS)]
    output = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert output.returncode == 0, output.stderr[-2000:]
    reports = [line.split() for line in output.stdout.splitlines()]
    added = {int(number): int(seed) for kind, number, seed in reports if kind == "added"}
    deleted = {int(number) for kind, number, _ in reports if kind == "deleted"}
    tried = {int(number) for kind, number, _ in reports if kind == "tried"}
    assert len(added) == sum(kind == "added" for kind, *_ in reports), "an id was given twice"
    assert len({seed // 100_000 for seed in added.values()}) == ROUNDS
    assert deleted
    with FolderStore(folder) as store:
        snapshot = store.index
        assert not deleted & set(snapshot.metadata.ids.tolist())
        for number, seed in added.items():
            if number in tried:
                continue
            assert snapshot.lookup([number])["price"].tolist() == [seed]
            vector = random_vectors(1, seed)[0]
            np.testing.assert_allclose(snapshot.query_vectors([number])[0], vector / np.linalg.norm(vector), atol=1e-6)
    assert {*added} - tried <= set(Index.load(folder).metadata.ids.tolist())
