"""Local features of images whose index is in a database: stored in PostgreSQL, computed when needed in Milvus."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from tests.conftest import draw_photos, output
from tests.retrieval.remote.conftest import unique_table
from tests.retrieval.remote.servers import Server
from vicinal import Embedder, Table
from vicinal.cli.main import main
from vicinal.retrieval import LocalEncoder, RemoteIndex
from vicinal.retrieval.reranking.local_features import encode_items
from vicinal.workflows import local_features
from vicinal.workflows.local_features import stored_encoder

SIZES = ["--local.size", "64", "--local.dim", "8"]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return draw_photos(tmp_path / "photos", 2, 6)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    Embedder("test_resnet", dim=16, pretrained=False).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def url(servers: dict[str, Server], model: Path, photos: Path) -> str:
    """An index in PostgreSQL that stores local features."""
    place = servers["postgresql"].url(unique_table())
    assert main(["index", "build", place, str(photos), "--model", str(model), "--local", "3", *SIZES]) == 0
    return place


def check(url: str, model: Path, number: int) -> None:
    """Every image has the codes of its file."""
    with RemoteIndex.connect(url) as index:
        encoder = stored_encoder(index, Embedder.from_pretrained(model))
        assert encoder is not None
        ids = index.ids_at("/")
        found, wanted = index.local_codes(ids), encode_items(index, ids, encoder)
        assert len(index.ids_without_local_codes()) == 0
    assert len(ids) == len(found) == number
    for each, codes in wanted.items():
        assert np.abs(np.frombuffer(found[each], np.uint8).astype(int) - codes.ravel()).max() <= 1  # batches differ


def test_codes_follow_what_is_built_added_synced_and_deleted(url: str, photos: Path, model: Path, capsys) -> None:
    check(url, model, 12)
    facts = json.loads(output(capsys, "index", "list", url, "--facts", "--json"))
    assert facts["local features"] == "4 x 4 patches of 8 bytes, weight 3"
    output(capsys, "index", "delete", url, photos / "class1" / "2.png")
    Image.effect_noise((40, 30), 50).save(photos / "class0" / "new.png")
    output(capsys, "index", "add", url, photos / "class0")
    check(url, model, 12)
    Image.effect_noise((40, 30), 90).save(photos / "class0" / "new.png")  # a new image in its place
    (photos / "class0" / "1.png").unlink()
    output(capsys, "index", "sync", url, photos)
    check(url, model, 12)
    facts = output(capsys, "index", "build", url, photos, "--model", model, "--overwrite", "--json")
    assert "local features" not in json.loads(facts)


def test_codes_of_an_image_that_is_replaced_meanwhile_are_not_stored(
    url: str, photos: Path, model: Path, monkeypatch, capsys
) -> None:
    def encode_and_replace(index: RemoteIndex, ids, encoder: LocalEncoder):
        codes = encode_items(index, ids, encoder)
        Image.effect_noise((40, 30), 90).save(photos / "class0" / "new.png")
        table = Table(pd.DataFrame({"path": [str(photos / "class0" / "new.png")], "label": ["class0"]}))
        index.upsert(encoder.model.embed(table, progress=False), table)
        return codes

    Image.effect_noise((40, 30), 50).save(photos / "class0" / "new.png")
    monkeypatch.setattr(local_features, "encode_items", encode_and_replace)
    output(capsys, "index", "add", url, photos / "class0")
    with RemoteIndex.connect(url) as index:
        assert index.lookup(index.ids_without_local_codes())["path"].str.endswith("new.png").tolist() == [True]
    monkeypatch.undo()
    output(capsys, "index", "add", url, photos / "class0")
    check(url, model, 13)


def test_searches_read_the_codes_of_the_index_and_its_weight(url: str, photos: Path, monkeypatch, capsys) -> None:
    encoded, encode = [], LocalEncoder.encode

    def counted(encoder: LocalEncoder, source, progress: bool = True):
        encoded.append(len(source))
        return encode(encoder, source, progress)

    monkeypatch.setattr(LocalEncoder, "encode", counted)
    text = output(capsys, "search", url, photos / "class1" / "3.png", "-k", "2", "--rerank", "local")
    assert text.splitlines()[1].split()[1:3] == ["4.0000", "class1"]  # similarity 1, and 3 for all patches
    assert encoded == [1]  # of the query alone


def test_milvus_stores_none_and_says_that_they_are_computed_when_needed(
    servers: dict[str, Server], model: Path, photos: Path, capsys
) -> None:
    place = servers["milvus"].url(unique_table())
    assert main(["index", "build", place, str(photos), "--model", str(model), "--local"]) == 2
    message = "an index in Milvus stores no local features; leave out --local: vicinal search --rerank local computes"
    assert message in capsys.readouterr().err
    output(capsys, "index", "build", place, photos, "--model", model)
    words = [
        "search",
        place,
        photos / "class1" / "3.png",
        "-k",
        "2",
        "--rerank",
        "local",
        "--rerank.weight",
        "3",
        *SIZES,
    ]
    assert output(capsys, *words).splitlines()[1].split()[1:3] == ["4.0000", "class1"]
