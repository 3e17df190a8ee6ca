"""A service changes over to the new model of an upgraded index, and loses no request."""

from __future__ import annotations

import base64
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import draw_photos
from tests.serving.service import client_of, noise, wait_for
from vicinal import Index, Table
from vicinal.data import ImageTransform
from vicinal.models import ContextRefiner, Embedder
from vicinal.retrieval import LocalEncoder
from vicinal.workflows import EmbeddingReader, roll_back, upgrade_index
from vicinal.workflows.local_features import store_local_features


@pytest.mark.parametrize("variant", ["plain", "local", "refined"])
def test_a_service_changes_over_to_the_new_model(variant: str, tmp_path: Path) -> None:
    for name, dim in (("old", 8), ("new", 12)):
        model = Embedder("test_resnet", dim=dim, pretrained=False, transform=ImageTransform(size=32))
        model.save_pretrained(tmp_path / name)
    readers = {name: EmbeddingReader(model=str(tmp_path / name), num_workers=0) for name in ("old", "new")}
    table = Table.from_folder(draw_photos(tmp_path / "photos", 2, 3))
    embedded = readers["old"].embed_table(table)
    flags = {"model": str(tmp_path / "old")}
    refiners = {name: None if variant != "refined" else refiner(readers[name]) for name in readers}
    Index.build(embedded.vectors, table, "auto", readers["old"].fingerprint, refiners["old"], flags).save(
        tmp_path / "index"
    )
    if variant == "local":
        encoder = LocalEncoder.fit(readers["old"].loaded_model, table, dim=6, size=64)  # type: ignore[arg-type]
        store_local_features(Index.load(tmp_path / "index"), encoder, weight=2.0)  # type: ignore[arg-type]

    def load(settings: dict[str, Any]) -> tuple[Embedder, ContextRefiner | None]:
        model = settings["made_with"]["model"]
        return Embedder.from_pretrained(model), refiners[Path(model).name]

    stop, answers, pictures, scores = threading.Event(), list[tuple[int, Any]](), list[bytes](), list[float]()
    old = Embedder.from_pretrained(tmp_path / "old")
    options = {"load_models": load, "refiner": refiners["old"], "decode_workers": 1}
    with client_of(tmp_path / "index", old, **options) as client:

        def ask(first: int) -> None:
            while not stop.is_set():
                data = noise(first + len(pictures))
                pictures.append(data)
                image = base64.b64encode(data).decode()
                added = client.post("/items", json={"image": image, "label": "new"})
                rerank = {"rerank": "local"} if variant == "local" else {}
                found = client.post("/search", json={"image": image, "k": 1, **rerank})
                answers.append((added.status_code, added.json()))
                answers.append((found.status_code, found.json()))
                scores.append(found.json()["matches"][0]["score"] if found.status_code == 200 else 0.0)

        threads = [threading.Thread(target=ask, args=(10_000 * number,)) for number in (1, 2)]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(answers) > 4)
        upgrade_index(tmp_path / "index", readers["new"], {"model": str(tmp_path / "new")}, refiners["new"])
        wait_for(lambda: client.get("/info").json()["dim"] == 12)
        count = len(answers)
        wait_for(lambda: len(answers) > count + 4)
        roll_back(
            tmp_path / "index",
            lambda made_with: EmbeddingReader(model=made_with["model"]),
            lambda made_with: refiners["old"],
        )
        wait_for(lambda: client.get("/info").json()["dim"] == 8)
        count = len(answers)
        wait_for(lambda: len(answers) > count + 4)
        stop.set()
        for thread in threads:
            thread.join()
    assert [each for each in answers if each[0] not in (200, 201)] == []
    index = Index.load(tmp_path / "index")
    vectors, frame = index.contents()
    assert len(frame) == len(table) + len(answers) // 2  # each was added once
    if variant == "refined":  # a query is refined by itself too, and so is another vector than in the index
        assert index.refiner_fingerprint == refiners["old"].fingerprint()  # type: ignore[union-attr]
        vectors = index.query_vectors(frame["id"])
    else:
        assert min(scores) > (2.95 if variant == "local" else 0.999)  # each finds itself, so no search mixes models
    again = readers["old"].embed_table(Table(frame[["path"]])).vectors
    np.testing.assert_allclose(vectors, again, atol=1e-4)
    if variant == "local":
        assert len(index.local_codes(frame["id"].to_numpy())) == len(frame)


def refiner(reader: EmbeddingReader) -> ContextRefiner:
    """A refiner for the model of a reader, which is not the identity."""
    made = ContextRefiner(dim=reader.loaded_model.dim, num_heads=2, neighbors=3)
    made.model_fingerprint = reader.fingerprint
    for weight in made.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return made
