"""A service changes over to the new model of an upgraded index, and loses no request."""

from __future__ import annotations

import base64
import threading
from pathlib import Path
from typing import Any

import numpy as np

from tests.conftest import draw_photos
from tests.serving.service import client_of, noise, wait_for
from vicinal import Index, Table
from vicinal.data import ImageTransform
from vicinal.models import Embedder
from vicinal.workflows import EmbeddingReader, roll_back, upgrade_index


def test_a_service_changes_over_to_the_new_model(tmp_path: Path) -> None:
    for name, dim in (("old", 8), ("new", 12)):
        model = Embedder("test_resnet", dim=dim, pretrained=False, transform=ImageTransform(size=32))
        model.save_pretrained(tmp_path / name)
    readers = {name: EmbeddingReader(model=str(tmp_path / name), num_workers=0) for name in ("old", "new")}
    table = Table.from_folder(draw_photos(tmp_path / "photos", 2, 3))
    embedded = readers["old"].embed_table(table)
    flags = {"model": str(tmp_path / "old")}
    Index.build(embedded.vectors, table, model_fingerprint=readers["old"].fingerprint, made_with=flags).save(
        tmp_path / "index"
    )

    def load(settings: dict[str, Any]) -> Embedder:
        return Embedder.from_pretrained(settings["made_with"]["model"])

    stop, answers, pictures, scores = threading.Event(), list[tuple[int, Any]](), list[bytes](), list[float]()
    old = Embedder.from_pretrained(tmp_path / "old")
    with client_of(tmp_path / "index", old, load_embedder=load, decode_workers=1) as client:

        def ask(first: int) -> None:
            while not stop.is_set():
                data = noise(first + len(pictures))
                pictures.append(data)
                image = base64.b64encode(data).decode()
                added = client.post("/items", json={"image": image, "label": "new"})
                found = client.post("/search", json={"image": image, "k": 1})
                answers.append((added.status_code, added.json()))
                answers.append((found.status_code, found.json()))
                scores.append(found.json()["matches"][0]["score"] if found.status_code == 200 else 0.0)

        threads = [threading.Thread(target=ask, args=(10_000 * number,)) for number in (1, 2)]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(answers) > 4)
        upgrade_index(tmp_path / "index", readers["new"], {"model": str(tmp_path / "new")})
        wait_for(lambda: client.get("/info").json()["dim"] == 12)
        count = len(answers)
        wait_for(lambda: len(answers) > count + 4)
        roll_back(tmp_path / "index", lambda made_with: EmbeddingReader(model=made_with["model"]))
        wait_for(lambda: client.get("/info").json()["dim"] == 8)
        count = len(answers)
        wait_for(lambda: len(answers) > count + 4)
        stop.set()
        for thread in threads:
            thread.join()
    assert [each for each in answers if each[0] not in (200, 201)] == []
    assert min(scores) > 0.999  # each finds itself, so no search mixes models
    vectors, frame = Index.load(tmp_path / "index").contents()
    assert len(frame) == len(table) + len(answers) // 2  # each was added once
    again = readers["old"].embed_table(Table(frame[["path"]])).vectors
    np.testing.assert_allclose(vectors, again, atol=1e-4)
