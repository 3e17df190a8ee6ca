"""Each endpoint: what it takes and what it answers."""

import base64
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from tests.serving.service import DIM, client_of, noise, random_vectors, save_index, vector_list
from vicinal import Embedder, Index, Table
from vicinal.retrieval import match_images
from vicinal.retrieval.calibration import example_calibration
from vicinal.retrieval.reranking import RERANKINGS


def search(client: TestClient, **body: Any) -> dict[str, Any]:
    response = client.post("/search", json=body)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["count"] == len(answer["matches"])
    return answer


def ids(answer: dict[str, Any]) -> list[int]:
    return [int(match["id"]) for match in answer["matches"]]


def test_an_image_finds_itself_however_it_is_sent(client: TestClient) -> None:
    data = noise(5)
    form = client.post("/search", files={"image": ("x.png", data)}, data={"k": "3", "filter": "price < 9"})
    encoded = client.post("/search", json={"image": base64.b64encode(data).decode(), "k": 3, "filter": "price < 9"})
    assert form.json() == encoded.json()
    first = form.json()["matches"][0]
    assert first.pop("score") == pytest.approx(1, abs=1e-5)
    assert first == {
        "id": "5", "probability": None, "label": "class2", "columns": {"path": "5.png", "price": 5, "new": False}
    }  # fmt: skip
    assert form.json()["is_match"] is None


def test_every_reranking_is_offered(tmp_path: Path) -> None:
    with client_of(save_index(tmp_path), max_rerank=30) as client:
        for name in RERANKINGS.keys() - {"local"}:  # which has tests of its own
            assert search(client, id=1, k=3, rerank=name)["count"] == 3, name
        client.post("/items", json={"vector": vector_list(1)})
        assert client.post("/search", json={"id": 1, "rerank": name}).status_code == 422


def test_groups_are_looked_for_among_the_nearest(tmp_path: Path) -> None:
    query, vectors = np.array(vector_list(7)), random_vectors(30)
    order = np.argsort(-(vectors / np.linalg.norm(vectors, axis=1, keepdims=True)) @ query)
    for place, count in ((7, 2), (29, 1)):
        group = ["lone" if number == order[place] else "all others" for number in range(30)]
        with client_of(save_index(tmp_path / str(place), group=group), max_candidates=8) as client:
            assert search(client, vector=query.tolist(), k=2, group_by="group")["count"] == count


def test_an_item_is_searched_for_without_itself(client: TestClient) -> None:
    assert ids(search(client, id=4, k=1)) == [4]
    others = ids(search(client, id=4, k=50, exclude_id=4))
    assert 4 not in others
    assert len(others) == 11
    assert ids(search(client, id=4, k=2, exclude_id=99)) == ids(search(client, id=4, k=2))


def test_a_box_is_a_part_of_the_upright_image(client: TestClient, model: Embedder) -> None:
    image = Image.open(io.BytesIO(noise(5, (60, 40))))
    buffer = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6  # shown turned by 90 degrees
    image.rotate(90, expand=True).save(buffer, "PNG", exif=exif)
    data = {"box": json.dumps([10, 5, 30, 20])}
    answer = client.post("/embed", files={"image": ("x.png", buffer.getvalue())}, data=data).json()
    expected = model.embed([image.crop((10, 5, 40, 25))], progress=False)[0]
    np.testing.assert_allclose(answer["vector"], expected, atol=1e-5)
    assert answer["dim"] == DIM
    assert answer["model"] == model.fingerprint()


def test_items_are_added_shown_and_deleted(client: TestClient) -> None:
    data, columns = noise(99, (80, 40)), {"columns": json.dumps({"price": 3, "note": "a é"})}
    added = client.post("/items", files={"image": ("x.png", data)}, data={**columns, "label": "class7"})
    assert added.status_code == 201
    (number,) = added.json()["ids"]
    found = search(client, image=base64.b64encode(data).decode(), k=1)["matches"][0]
    assert (found["id"], found["label"]) == (number, "class7")
    assert {**found["columns"], "path": ""} == {"path": "", "price": 3, "note": "a é"}
    assert "/" not in found["columns"]["path"]
    assert client.get(f"/items/{number}").json() == {
        "id": number, "label": "class7", "columns": found["columns"]
    }  # fmt: skip
    thumbnail = client.get(f"/items/{number}/image?size=20")
    assert thumbnail.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(thumbnail.content)).size == (20, 10)
    assert client.request("DELETE", "/items", json={"filter": "note == 'a é'"}).json() == {"deleted": 1}
    assert client.request("DELETE", "/items", json={"ids": [number]}).json() == {"deleted": 0}
    assert client.get(f"/items/{number}").status_code == 404
    assert client.get(f"/items/{number}/image").status_code == 404


def test_a_calibrated_index_says_match_or_none(tmp_path: Path) -> None:
    with client_of(save_index(tmp_path, is_calibrated=True)) as client:
        answer = search(client, id=3, k=2)
        assert answer["is_match"] is True
        assert answer["matches"][0]["probability"] == 1.0
        others = search(client, id=3, k=5, exclude_id=3)  # the item itself would be a match
        assert others["is_match"] is (others["matches"][0]["score"] >= 0.7)
        assert search(client, id=3, k=5, exclude_id=3, min_score=0.9999)["is_match"] is False
        assert search(client, id=3, k=5, min_probability=1)["matches"][0]["id"] == "3"
        assert search(client, id=3, k=5, min_score=0.999)["count"] == 1
        assert search(client, id=3, filter="price > 99") == {
            "matches": [], "is_match": False, "label": None, "count": 0
        }  # fmt: skip
        assert client.get("/info").json()["calibration"]["threshold"] == 0.7


def test_a_calibration_of_margins_is_about_the_best_match(tmp_path: Path) -> None:
    folder = save_index(tmp_path)
    index = Index.load(folder)
    index.calibration = replace(example_calibration(), score="margin", threshold=0.1, scores=(0.0, 1.0))
    index.save(folder)
    (expected,) = match_images(index, np.array([vector_list(3)]), Table(pd.DataFrame(index=[0])), 4)
    with client_of(folder) as client:
        answer = search(client, vector=vector_list(3), k=4)
    decision = expected.decision
    assert (answer["is_match"], answer["label"]) == (decision.is_match, decision.label)
    assert answer["matches"][0]["probability"] == pytest.approx(decision.probability)
    assert [match["probability"] for match in answer["matches"][1:]] == [None] * 3


def test_info_says_what_can_be_asked(client: TestClient) -> None:
    info = client.get("/info").json()
    columns = {column["name"]: (column["type"], column["values"]) for column in info["columns"]}
    assert columns["label"] == ("text", ["class0", "class1", "class2"])
    assert columns["price"] == ("number", list(range(12)))
    assert columns["new"] == ("boolean", [False, True])
    assert "path" not in columns
    assert (info["images"], info["dim"], info["kind"], info["name"]) == (12, DIM, "exact", "index")
    assert (info["can_write"], info["can_embed"], info["calibration"]) == (True, True, None)
    assert info["limits"]["max_k"] == 100


def test_an_index_without_a_model_takes_vectors_and_may_be_emptied(tmp_path: Path) -> None:
    with client_of(save_index(tmp_path)) as client:
        assert client.get("/info").json()["can_embed"] is False
        assert search(client, vector=vector_list(0), k=1)["count"] == 1
        for path in ("/search", "/embed", "/items"):
            response = client.post(path, files={"image": ("x.png", noise(1))})
            assert response.status_code == 422
            assert "no model" in response.json()["detail"]
        assert client.get("/items/3/image").status_code == 404
        everything = {"ids": [*range(30), 2, 77]}
        assert client.request("DELETE", "/items", json=everything).json() == {"deleted": 30}
        assert search(client, vector=vector_list(0)) == {"matches": [], "is_match": None, "count": 0}
        assert client.post("/items", json={"vector": vector_list(4)}).json() == {"ids": ["30"]}
        assert ids(search(client, vector=vector_list(0))) == [30]


def test_health_readiness_metrics_and_openapi(client: TestClient) -> None:
    assert client.get("/health").json() == {"status": "alive"}
    assert client.get("/ready").json() == {"status": "ready"}
    search(client, id=1)
    assert 'route="/search"' in client.get("/metrics").text
    paths = client.get("/openapi.json").json()["paths"]
    for path, method in (("/search", "post"), ("/embed", "post"), ("/items", "post"), ("/items", "delete")):
        content = paths[path][method]["requestBody"]["content"]
        assert content["application/json"]["examples"], path
    assert [each["name"] for each in paths["/items/{id}/image"]["get"]["parameters"]] == ["id", "size"]
    assert "Idempotency-Key" in [each["name"] for each in paths["/items"]["post"]["parameters"]]
    for path, answer in (("/info", client.get("/info")), ("/items/{id}", client.get("/items/3"))):
        example = paths[path]["get"]["responses"]["200"]["content"]["application/json"]["example"]
        assert set(example) == set(answer.json()), path
    decided = paths["/search"]["post"]["responses"]["200"]["content"]["application/json"]["example"]
    assert set(decided) == {"matches", "is_match", "label", "count"}
    assert client.get("/docs").status_code == 404
