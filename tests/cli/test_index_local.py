"""Local features that an index stores: `vicinal index build --local`."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import draw_photos, output, refused
from vicinal import Embedder, Index
from vicinal.cli.main import main
from vicinal.retrieval.reranking.local_features import IndexFeatures, LocalEncoder, encode_items
from vicinal.workflows.local_features import stored_encoder

LOCAL = ["--local", "3", "--local.size", "64", "--local.dim", "8"]


@pytest.fixture
def stored(run: Path, tmp_path: Path) -> tuple[Path, Path]:
    """An index of twelve photos that stores local features, and the folder of the photos."""
    photos = draw_photos(tmp_path / "photos", 2, 6)
    assert main(["index", "build", str(tmp_path / "index"), str(photos), "--model", str(run), *LOCAL]) == 0
    return tmp_path / "index", photos


def codes_in(folder: Path) -> dict[int, bytes]:
    with sqlite3.connect(folder / "index.sqlite") as connection:
        return dict(connection.execute("SELECT id, codes FROM local_features ORDER BY id"))


def check(folder: Path, run: Path) -> None:
    """Every image that is in the index has the codes of its file, and no other has any."""
    with Index.load(folder) as index:
        encoder = stored_encoder(index, Embedder.from_pretrained(run / "model"))
        assert encoder is not None
        ids = index.metadata.frame["id"].to_numpy()
        wanted = encode_items(index, ids, encoder)
    found = codes_in(folder)
    assert list(found) == ids.tolist()
    for number, codes in wanted.items():
        assert np.abs(np.frombuffer(found[number], np.uint8).astype(int) - codes.ravel()).max() <= 1  # batches differ


def test_codes_follow_what_is_built_added_synced_and_deleted(stored: tuple[Path, Path], run: Path, capsys) -> None:
    folder, photos = stored
    check(folder, run)
    facts = json.loads(output(capsys, "index", "list", folder, "--facts", "--json"))
    assert facts["local features"] == "4 x 4 patches of 8 bytes, weight 3"
    output(capsys, "index", "delete", folder, "0", photos / "class1" / "2.png")
    assert len(codes_in(folder)) == 10
    check(folder, run)
    Image.effect_noise((40, 30), 50).save(photos / "class0" / "new.png")
    output(capsys, "index", "add", folder, photos / "class0")
    assert len(codes_in(folder)) == 12
    (photos.parent / "later").mkdir()
    Image.effect_noise((40, 30), 70).save(photos.parent / "later" / "a.png")
    (photos.parent / "d.csv").write_text("path,decision,identity\na.png,new,Ada\n")
    output(capsys, "enroll", folder, "--source", photos.parent / "later", "--decisions", photos.parent / "d.csv")
    assert len(codes_in(folder)) == 13
    output(capsys, "index", "delete", folder, photos.parent / "later" / "a.png")
    Image.effect_noise((40, 30), 90).save(photos / "class0" / "new.png")  # a new image in its place
    (photos / "class0" / "1.png").unlink()
    output(capsys, "index", "sync", folder, photos)
    assert len(codes_in(folder)) == 12
    check(folder, run)


def test_searches_read_the_codes_of_the_index_and_its_weight(stored: tuple[Path, Path], monkeypatch, capsys) -> None:
    folder, photos = stored
    picture, encoded = photos / "class1" / "3.png", []
    encode = LocalEncoder.encode

    def counted(encoder: LocalEncoder, source, progress: bool = True):
        encoded.append(len(source))
        return encode(encoder, source, progress)

    monkeypatch.setattr(LocalEncoder, "encode", counted)
    text = output(capsys, "search", folder, picture, "-k", "2", "--rerank", "local")
    assert text.splitlines()[1].split()[:3] == ["1", "4.0000", "class1"]  # similarity 1, and 3 for all patches
    assert encoded == [1]  # of the query alone
    text = output(capsys, "search", folder, picture, "-k", "2", "--rerank", "local", "--rerank.weight", "0.5")
    assert text.splitlines()[1].split()[:3] == ["1", "1.5000", "class1"]
    message = refused(capsys, "search", folder, picture, "--rerank", "local", "--local.size", "32")
    assert "the index stores its local features; leave out the options" in message


def test_images_whose_codes_are_missing_are_computed(stored: tuple[Path, Path], run: Path, capsys) -> None:
    folder, photos = stored
    model = Embedder.from_pretrained(run / "model")
    with Index.load(folder) as index:
        encoder = stored_encoder(index, model)
        ids = np.array([7, 2, 7])
        wanted = IndexFeatures(index, encoder).codes(ids)
        with sqlite3.connect(folder / "index.sqlite") as connection:
            connection.execute("DELETE FROM local_features WHERE id IN (2, 3)")  # as if the build had been killed
        found = IndexFeatures(index, encoder).codes(ids)
        assert np.abs(found.astype(int) - wanted).max() <= 1
    output(capsys, "index", "add", folder, photos)  # which has no new image
    check(folder, run)


def test_codes_of_deleted_images_are_not_stored_again(stored: tuple[Path, Path]) -> None:
    folder, _ = stored
    with Index.load(folder) as index:
        index.delete([4])
        index.add_local_codes(np.array([4, 5]), [b"a", b"b"])
    assert 4 not in codes_in(folder)
    assert codes_in(folder)[5] == b"b"


def test_an_index_built_again_without_local_features_has_none(stored: tuple[Path, Path], run: Path, capsys) -> None:
    folder, photos = stored
    output(capsys, "index", "build", folder, photos, "--model", run, "--overwrite")
    facts = json.loads(output(capsys, "index", "list", folder, "--facts", "--json"))
    assert "local features" not in facts
    with sqlite3.connect(folder / "index.sqlite") as connection:
        assert not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'local_features'").fetchall()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--local.size", "64"], "--local.size is about local features; give --local too"),
        (["--local", "nan"], "--local nan: the weight of local features must be 0 or larger"),
        (["--local", "-1"], "--local -1: the weight of local features must be 0 or larger"),
        (["--local", "--local.size", "0"], "size"),
    ],
)
def test_bad_options_are_one_line(flags: list[str], message: str, run: Path, photos: Path, tmp_path, capsys) -> None:
    assert message in refused(capsys, "index", "build", tmp_path / "index", photos, "--model", run, *flags)
    assert not (tmp_path / "index").exists()


def test_local_features_are_not_for_stored_embeddings(run: Path, tmp_path, capsys) -> None:
    output(capsys, "embed", run, "--split", "test", "--out", tmp_path / "v.npy")
    message = refused(capsys, "index", "build", tmp_path / "index", tmp_path / "v.npy", "--local")
    assert "local features come from images and a model of a timm backbone" in message
    assert not (tmp_path / "index").exists()
