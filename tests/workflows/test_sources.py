"""Embeddings read from files, and made from images."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from vicinal.cli.main import main
from vicinal.data import ImageTransform, Table, save_embeddings
from vicinal.models import Embedder
from vicinal.retrieval import Index
from vicinal.utils.errors import InputError
from vicinal.workflows.embedding_reader import EmbeddingReader
from vicinal.workflows.models import load_model
from vicinal.workflows.source import Source


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "m"
    Embedder("test_resnet", dim=8, pretrained=False, transform=ImageTransform(size=16)).save_pretrained(folder)
    return folder


def test_several_sources_keep_labels_and_order(model: Path, photos: Path) -> None:
    one, two = photos / "class1" / "0.png", photos / "class2" / "0.png"
    parts = list(EmbeddingReader(model=str(model)).embed_sources([str(one), str(two), str(photos), str(one)]))
    assert [len(part.vectors) for part in parts] == [2, 48, 1]
    assert [part.table.has("label") for part in parts] == [False, True, False]
    np.testing.assert_allclose(parts[0].vectors[0], parts[2].vectors[0], rtol=1e-5, atol=1e-6)
    assert len({part.fingerprint for part in parts}) == 1


@pytest.mark.parametrize("max_size", [None, 20])
def test_what_cannot_be_read_in_a_folder_is_left_out_at_any_scale(
    model: Path, photos: Path, tmp_path: Path, max_size: int | None
) -> None:
    shutil.copytree(photos / "class1", tmp_path / "photos")
    (tmp_path / "photos" / "1.png").write_bytes(b"")
    reader = EmbeddingReader(model=str(model), scales=(1.0,), max_size=max_size)
    embedded = reader.embed(str(tmp_path / "photos"))
    paths = [path for path in Source(str(tmp_path / "photos")).table.paths if Path(path).name != "1.png"]
    assert embedded.table.paths == paths
    assert embedded.num_left_out == 1
    alone = reader.embed(paths[-1])
    np.testing.assert_allclose(embedded.vectors[-1], alone.vectors[0], rtol=1e-5, atol=1e-6)


def test_split_of_embeddings(model: Path, photos: Path, tmp_path: Path) -> None:
    table = Table.from_folder(photos).split_classes({"train": 0.5, "test": 0.5})
    vectors = np.random.default_rng(0).normal(size=(48, 4)).astype(np.float32)
    save_embeddings(tmp_path / "v.parquet", vectors, table)
    part = EmbeddingReader().embed(str(tmp_path / "v.parquet"), "test")
    rows = (table.frame["split"] == "test").to_numpy()
    np.testing.assert_array_equal(part.vectors, vectors[rows])
    assert part.table.paths == table.subset("test").paths
    assert part.fingerprint is None


def test_embeddings_in_a_file_keep_the_fingerprint_of_their_model(model: Path, photos: Path, tmp_path: Path) -> None:
    fingerprint = load_model(str(model)).fingerprint()
    for file, known in (("v.parquet", fingerprint), ("v.npy", None)):
        assert main(["embed", str(photos), "--model", str(model), "--out", str(tmp_path / file)]) == 0
        assert EmbeddingReader().embed(str(tmp_path / file)).fingerprint == known
    again = tmp_path / "again.parquet"
    assert main(["embed", str(tmp_path / "v.parquet"), "--out", str(again)]) == 0
    assert EmbeddingReader().embed(str(again)).fingerprint == fingerprint


def test_fingerprints_are_computed_lazily(
    model: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VICINAL_DATA", str(tmp_path))  # where no exported model is kept
    counted = []
    monkeypatch.setattr(Embedder, "fingerprint", lambda self: counted.append(1) or "abc")
    part = EmbeddingReader(model=str(model)).embed(str(photos))
    assert not counted
    assert (part.fingerprint, part.fingerprint, len(counted)) == ("abc", "abc", 1)


def test_image_sources(photos: Path) -> None:
    assert len(Source(str(photos / "class0" / "0.png")).table) == 1
    assert len(Source(str(photos)).table) == 48
    with pytest.raises(InputError, match="--model"):
        EmbeddingReader().embed(str(photos))


def test_conditions_know_the_columns_that_an_index_was_made_with(tmp_path: Path) -> None:
    made_with = {"path_column": "file", "label_column": "kind"}
    table = Table(pd.DataFrame({"path": ["a.png", "b.png"], "label": ["cup", "bowl"]}))
    Index.build(np.eye(2), table, made_with=made_with).save(tmp_path / "i")
    found = EmbeddingReader(where="kind == 'bowl' and 'b.png' in file").embed(str(tmp_path / "i"))
    assert found.table.frame["label"].tolist() == ["bowl"]


def test_labels_in_a_file_of_their_own_are_for_files_of_embeddings(tmp_path: Path, photos: Path) -> None:
    np.save(tmp_path / "v.npy", np.eye(3, dtype=np.float32))
    rows = {"file": ["a.png", "b.png", "c.png"], "kind": ["cat", "dog", "dog"], "split": ["train", "train", "test"]}
    pd.DataFrame(rows).to_csv(tmp_path / "y.csv", index=False)
    columns = {"path_column": "file", "label_column": "kind"}
    reader = EmbeddingReader(labels=str(tmp_path / "y.csv"), **columns)  # type: ignore[arg-type]
    part = reader.embed(str(tmp_path / "v.npy"), "train")
    assert part.table.frame["label"].tolist() == ["cat", "dog"]
    assert part.table.paths[0] == str(tmp_path / "a.png")
    for read in (reader.embed, reader.list_images, lambda source: list(reader.embed_sources([source]))):
        with pytest.raises(InputError, match=r"--labels gives labels to files of embeddings; .* is none"):
            read(str(photos / "class0" / "0.png"))
