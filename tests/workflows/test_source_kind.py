"""What kind of embedding source a path is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vicinal.data import Table, save_embeddings
from vicinal.models import Embedder
from vicinal.retrieval import Index
from vicinal.workflows.source import Source


def test_kinds(photos: Path, tmp_path: Path) -> None:
    table, vectors = Table.from_folder(photos), np.eye(48, dtype=np.float32)
    table.save(tmp_path / "table.parquet")
    save_embeddings(tmp_path / "vectors.parquet", vectors, table)
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    Index.build(vectors, table).save(tmp_path / "index")
    Embedder("test_resnet", dim=8, pretrained=False).save_pretrained(tmp_path / "model")
    for run in ("run", "refiner"):
        (tmp_path / run).mkdir()
        (tmp_path / run / "recipe.yaml").write_text("seed: 0\n")
    (tmp_path / "refiner" / "embeddings.parquet").write_bytes(b"")
    for path, kind in (
        (tmp_path / "run", "run"),
        (tmp_path / "refiner", "refiner run"),
        (tmp_path / "vectors.parquet", "embeddings"),
        ("missing.npy", "embeddings"),
        (tmp_path / "index", "index"),
        (tmp_path / "model", "embedder"),
        (photos / "class0" / "0.png", "image"),
        (photos, "images"),
        (tmp_path / "table.parquet", "images"),
        (tmp_path / "broken.parquet", "images"),
        ("missing.png", "images"),
    ):
        assert Source(str(path)).kind == kind


@pytest.mark.parametrize("config", ["", "[]", "{", "{}", '{"format": ["vicinal-index"]}', '{"format": "another"}'])
def test_other_folders_hold_images(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config)
    assert Source(str(tmp_path)).kind == "images"
