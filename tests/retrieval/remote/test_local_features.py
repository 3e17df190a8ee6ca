"""Local features that an index stores, in a folder or in PostgreSQL; in Milvus they are computed when needed."""

import json
import sqlite3
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from tests.conftest import draw_photos, output, refused
from tests.retrieval.remote.conftest import unique_table
from tests.retrieval.remote.servers import Server
from vicinal import Embedder, Index, Table
from vicinal.cli.main import main
from vicinal.retrieval import LocalEncoder
from vicinal.retrieval.reranking.local_features import IndexFeatures, encode_items
from vicinal.workflows import local_features
from vicinal.workflows.local_features import stored_encoder

SIZES = ["--local.size", "64", "--local.dim", "8"]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return draw_photos(tmp_path / "photos", 2, 6)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("local") / "model"
    Embedder("test_resnet", dim=16, pretrained=False).save_pretrained(folder)
    return folder


@pytest.fixture(params=["folder", "postgresql"])
def place(request: pytest.FixtureRequest, model: Path, photos: Path, tmp_path: Path) -> str:
    place = str(tmp_path / "index")
    if request.param == "postgresql":
        place = request.getfixturevalue("servers")["postgresql"].url(unique_table())
    assert main(["index", "build", place, str(photos), "--model", str(model), "--local", "3", *SIZES]) == 0
    return place


def check(place: str, model: Path, number: int) -> None:
    """Every image that is in the index has the codes of its file, and no other has any."""
    with Index.load(place) as index:
        encoder = stored_encoder(index, Embedder.from_pretrained(model))
        assert encoder is not None
        ids = index.ids_at("/")
        found, wanted = index.local_codes(np.concatenate([ids, np.arange(99)])), encode_items(index, ids, encoder)
        assert len(index.ids_without_local_codes()) == 0
    assert len(ids) == number
    assert sorted(found) == sorted(ids.tolist())
    for each, codes in wanted.items():
        assert np.abs(np.frombuffer(found[each], np.uint8).astype(int) - codes.ravel()).max() <= 1  # batches differ


def test_codes_follow_what_is_built_added_enrolled_synced_and_deleted(
    place: str, photos: Path, model: Path, tmp_path: Path, capsys
) -> None:
    check(place, model, 12)
    facts = json.loads(output(capsys, "index", "list", place, "--facts", "--json"))
    assert facts["local features"] == "4 x 4 patches of 8 bytes, weight 3"
    output(capsys, "index", "delete", place, photos / "class0" / "0.png", photos / "class1" / "2.png")
    check(place, model, 10)
    Image.effect_noise((40, 30), 50).save(photos / "class0" / "new.png")
    output(capsys, "index", "add", place, photos / "class0")
    check(place, model, 12)
    (tmp_path / "later").mkdir()
    Image.effect_noise((40, 30), 70).save(tmp_path / "later" / "a.png")
    (tmp_path / "d.csv").write_text("path,decision,identity\na.png,new,Ada\n")
    output(capsys, "enroll", place, "--source", tmp_path / "later", "--decisions", tmp_path / "d.csv")
    check(place, model, 13)
    output(capsys, "index", "delete", place, tmp_path / "later" / "a.png")
    Image.effect_noise((40, 30), 90).save(photos / "class0" / "new.png")  # a new image in its place
    (photos / "class0" / "1.png").unlink()
    output(capsys, "index", "sync", place, photos)
    check(place, model, 12)
    output(capsys, "index", "build", place, photos, "--model", model, "--overwrite")
    assert "local features" not in json.loads(output(capsys, "index", "list", place, "--facts", "--json"))


def test_codes_of_an_image_that_is_replaced_meanwhile_are_not_stored(
    place: str, photos: Path, model: Path, monkeypatch, capsys
) -> None:
    def encode_and_replace(index, ids, encoder: LocalEncoder):
        codes = encode_items(index, ids, encoder)
        Image.effect_noise((40, 30), 90).save(photos / "class0" / "new.png")
        table = Table(pd.DataFrame({"path": [str(photos / "class0" / "new.png")], "label": ["class0"]}))
        index.upsert(encoder.model.embed(table, progress=False), table)
        return codes

    Image.effect_noise((40, 30), 50).save(photos / "class0" / "new.png")
    monkeypatch.setattr(local_features, "encode_items", encode_and_replace)
    output(capsys, "index", "add", place, photos / "class0")
    with Index.load(place) as index:
        assert index.lookup(index.ids_without_local_codes())["path"].str.endswith("new.png").tolist() == [True]
    monkeypatch.undo()
    output(capsys, "index", "add", place, photos / "class0")
    check(place, model, 13)


def test_searches_read_the_codes_of_the_index_and_its_weight(place: str, photos: Path, monkeypatch, capsys) -> None:
    encoded, encode = [], LocalEncoder.encode

    def counted(encoder: LocalEncoder, source, progress: bool = True):
        encoded.append(len(source))
        return encode(encoder, source, progress)

    monkeypatch.setattr(LocalEncoder, "encode", counted)
    words = ["search", place, photos / "class1" / "3.png", "-k", "2", "--rerank", "local"]
    assert output(capsys, *words).splitlines()[1].split()[:3] == ["1", "4.0000", "class1"]  # 1, and 3 for all patches
    assert encoded == [1]  # of the query alone
    text = output(capsys, *words, "--rerank.weight", "0.5")
    assert text.splitlines()[1].split()[:3] == ["1", "1.5000", "class1"]
    message = refused(capsys, *words, "--local.size", "32")
    assert "the index stores its local features; leave out the options" in message


@pytest.mark.parametrize("place", ["folder"], indirect=True)
def test_images_whose_codes_are_missing_are_computed(place: str, photos: Path, model: Path, capsys) -> None:
    with Index.load(place) as index:
        encoder, ids = stored_encoder(index, Embedder.from_pretrained(model)), np.array([7, 2, 7])
        wanted = IndexFeatures(index, encoder).codes(ids)
        with sqlite3.connect(f"{place}/index.sqlite") as connection:
            connection.execute("DELETE FROM local_features WHERE id IN (2, 3)")  # as if the build had been killed
        found = IndexFeatures(index, encoder).codes(ids)
        assert np.abs(found.astype(int) - wanted).max() <= 1
    output(capsys, "index", "add", place, photos)  # which has no new image
    check(place, model, 12)


def test_milvus_stores_none_and_says_that_they_are_computed_when_needed(
    servers: dict[str, Server], model: Path, photos: Path, capsys
) -> None:
    place = servers["milvus"].url(unique_table())
    said = refused(capsys, "index", "build", place, photos, "--model", model, "--local")
    assert "Milvus stores no local features; leave out --local: vicinal search --rerank local computes" in said
    output(capsys, "index", "build", place, photos, "--model", model)
    words = ["search", place, photos / "class1" / "3.png", "-k", "2", "--rerank", "local", "--rerank.weight", "3"]
    assert output(capsys, *words, *SIZES).splitlines()[1].split()[1:3] == ["4.0000", "class1"]
