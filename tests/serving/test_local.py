"""Searches of the service that are re-ranked by the local features that an index stores."""

import base64
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from tests.serving.service import client_of, noise, picture, save_index, vector_list
from vicinal import Embedder, Index, Table
from vicinal.export.exported_embedder import with_engine
from vicinal.retrieval import LocalEncoder, LocalReranking, search_images
from vicinal.retrieval.reranking.local_features import IndexFeatures
from vicinal.serving.embedders import TorchEmbedder
from vicinal.workflows.local_features import store_local_features


@pytest.fixture(scope="module")
def place(model: Embedder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of pictures of noise that stores local features of a larger size than that of the model; read only."""
    tmp_path = tmp_path_factory.mktemp("local")
    for number in range(12):
        (tmp_path / f"{number}.png").write_bytes(noise(number))
    table = Table(pd.DataFrame({"path": [str(tmp_path / f"{number}.png") for number in range(12)]}))
    index = Index.build(model.embed(table, progress=False), table, model_fingerprint=model.fingerprint())
    index.save(tmp_path / "index")
    with Index.load(tmp_path / "index") as saved:
        store_local_features(saved, LocalEncoder.fit(model, table, dim=6, size=64), weight=2.0)
    return tmp_path / "index"


@pytest.fixture(scope="module")
def local(place: Path, model: Embedder) -> Iterator[TestClient]:
    with client_of(place, model) as client:
        yield client


def search(client: TestClient, **body) -> dict:
    answer = client.post("/search", json={"rerank": "local", **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_an_image_is_found_by_its_patches_as_in_python(local: TestClient, place: Path, model: Embedder) -> None:
    by_image, by_id = search(local, image=encoded(noise(5)), k=12), search(local, id=5, k=12)
    assert by_image["matches"][0]["id"] == by_id["matches"][0]["id"] == "5"
    assert by_image["matches"][0]["score"] == pytest.approx(3, abs=0.02)  # similarity 1, and 2 for all patches
    for place_of in by_image["matches"][0]["patches"], by_id["matches"][0]["patches"]:
        assert len(place_of) == 16  # each patch matches itself
        assert all(patch[:2] == patch[2:4] and patch[4] == pytest.approx(1, abs=0.01) for patch in place_of)
        assert place_of[1][:2] == [0.375, 0.125]  # the second patch of the first row
    assert "matching_patches" not in by_id["matches"][0]["columns"]
    with Index.load(place) as index:
        encoder = LocalEncoder.from_settings(model, index.local_settings)
        table = Table(pd.DataFrame({"path": [str(place.parent / "5.png")]}))
        method = LocalReranking(weight=2.0).with_features(encoder.features(table), IndexFeatures(index))
        wanted = search_images(index, model.embed(table, progress=False), table, 12, reranking=method)[0].matches
    assert [match["id"] for match in by_image["matches"]] == [str(match["id"]) for match in wanted]
    np.testing.assert_allclose(
        [match["score"] for match in by_image["matches"]], [match["score"] for match in wanted], atol=0.02
    )
    assert "patches" not in local.post("/search", json={"id": 5}).json()["matches"][0]
    assert local.get("/info").json()["local"] == {"grid": [4, 4], "square": pytest.approx(0.8), "weight": 2}


def test_added_items_have_local_features_and_deleted_ones_none(place: Path, model: Embedder, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(place, tmp_path / "index"))
    with client_of(folder, model) as local:
        added = local.post("/items", json={"image": encoded(noise(77))}).json()["ids"][0]
        found = search(local, image=encoded(noise(77)), k=1)["matches"][0]
        assert (found["id"], len(found["patches"])) == (added, 16)
        by_vector = local.post("/items", json={"vector": vector_list(1)}).json()["ids"][0]  # which has no image
        answer = local.post("/search", json={"rerank": "local", "id": by_vector})
        assert (answer.status_code, answer.json()["detail"]) == (422, f"rerank: item {by_vector} has no local features")
        assert search(local, id=5, k=14)["count"] == 14  # among items without local features too
        local.request("DELETE", "/items", json={"ids": [added]})
        with Index.load(folder) as index:
            assert sorted(index.local_codes(np.arange(14))) == list(range(12))


def test_queries_without_local_features(local: TestClient) -> None:
    for body, message in (
        ({"vector": vector_list(1)}, "rerank: local features need an image; give image, url or id, not vector"),
        ({"id": 99}, "no item 99; it was never added or is deleted"),
    ):
        answer = local.post("/search", json={"rerank": "local", **body})
        assert answer.status_code in (404, 422)
        assert answer.json()["detail"] == message


def test_an_index_or_a_service_without_local_features(place: Path, tmp_path: Path) -> None:
    with client_of(place) as client:  # without a model, items have local features still
        assert search(client, id=3, k=1)["matches"][0]["id"] == "3"
        answer = client.post("/search", json={"rerank": "local", "image": encoded(picture())})
        assert answer.json()["detail"] == "this service has no model; it takes vectors and ids"
    (tmp_path / "other").mkdir()
    with client_of(save_index(tmp_path / "other")) as client:
        answer = client.post("/search", json={"rerank": "local", "id": 3})
        assert answer.status_code == 422
        assert answer.json()["detail"] == "rerank: the index stores no local features; build it with --local"


def test_an_exported_model_leaves_local_features_to_that_of_torch(place: Path, model: Embedder) -> None:
    exported = with_engine(model, "openvino", "cpu", None)
    embedder = TorchEmbedder(exported.embed_batch, exported.transform, "exported", model.fingerprint(), model)
    with client_of(place, embedder) as client:
        assert search(client, image=encoded(noise(5)), k=1)["matches"][0]["score"] == pytest.approx(3, abs=0.02)


def test_pictures_are_decoded_for_both_sizes(local: TestClient, tmp_path: Path) -> None:
    Image.effect_noise((300, 200), 60).convert("CMYK").save(tmp_path / "large.jpg")
    found = search(local, image=encoded((tmp_path / "large.jpg").read_bytes()), box=[10, 10, 100, 100], k=3)
    assert found["count"] == 3
