"""A service changes over to the new model of an upgraded index, and loses no request."""

import base64
import io
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.conftest import draw_photos
from tests.retrieval.remote.conftest import servers, unique_table  # noqa: F401
from tests.retrieval.remote.servers import STARTERS
from tests.serving.service import client_of, noise, wait_for
from vicinal import Index, Table
from vicinal.models import ContextRefiner, Embedder
from vicinal.retrieval import LocalEncoder, RemoteIndex
from vicinal.workflows import EmbeddingReader, roll_back, upgrade_index
from vicinal.workflows.local_features import store_local_features


@pytest.mark.parametrize("variant", ["local", "refined", *STARTERS])
def test_a_service_changes_over_to_the_new_model(
    variant: str, old_and_new: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    readers = {model: EmbeddingReader(model=model, num_workers=0) for model in old_and_new}
    refiners = {model: refiner(reader) if variant == "refined" else None for model, reader in readers.items()}
    (old, new), table = old_and_new, Table.from_folder(draw_photos(tmp_path / "photos", 2, 3))
    vectors, place = readers[old].embed_table(table).vectors, str(tmp_path / "index")
    if variant in STARTERS:
        place = request.getfixturevalue("servers")[variant].url(unique_table())
        RemoteIndex.build(vectors, table, place, "exact", readers[old].fingerprint, {"model": old}).close()
    else:
        index = Index.build(vectors, table, "auto", readers[old].fingerprint, refiners[old], {"model": old})
        index.save(place)
    if variant == "local":
        encoder = LocalEncoder.fit(readers[old].loaded_model, table, dim=6, size=64)  # type: ignore[arg-type]
        store_local_features(Index.load(place), encoder, weight=2.0)
    may_load, stop = threading.Event(), threading.Event()
    answers, scores, added = list[int](), list[float](), dict[int, bytes]()

    def load(settings: dict[str, Any]) -> tuple[Embedder, ContextRefiner | None]:
        assert may_load.wait(60)
        return Embedder.from_pretrained(settings["made_with"]["model"]), refiners[settings["made_with"]["model"]]

    def add() -> None:
        while not stop.is_set():
            data = noise(len(added))
            body = {"image": base64.b64encode(data).decode(), "label": "new"}
            response = client.post("/items", json=body)
            answers.append(response.status_code)
            added[int(response.json()["ids"][0])] = data

    def search() -> None:
        while not stop.is_set():
            image = base64.b64encode(Path(table.paths[len(scores) % 5]).read_bytes()).decode()
            rerank = {"rerank": "local"} if variant == "local" else {}
            response = client.post("/search", json={"image": image, "k": 1, **rerank})
            answers.append(response.status_code)
            scores.append(response.json()["matches"][0]["score"])

    def wait_for_more() -> None:
        before = len(scores), len(added)
        wait_for(lambda: len(scores) > before[0] + 3 and len(added) > before[1] + 3)

    options = {"load_models": load, "refiner": refiners[old], "decode_workers": 1}
    with client_of(place, Embedder.from_pretrained(old), **options) as client:  # type: ignore[arg-type]
        adding, searching = (threading.Thread(target=each) for each in (add, search))
        searching.start()
        if variant in STARTERS:  # where items keep no images, which an upgrade needs
            wait_for(lambda: len(scores) > 3)
        else:
            adding.start()
            may_load.set()
            wait_for_more()
        upgrade_index(place, readers[new], {"model": new}, refiners[new])
        if variant in STARTERS:  # searches by the old model go on while the new one is loaded, and what is added waits
            adding.start()
            count = len(scores)
            wait_for(lambda: len(scores) > count + 3)
            assert not added
            with Index.load(place) as opened:
                last = opened.ids_by_key(table.image_keys)[-1]
            assert client.request("DELETE", "/items", json={"ids": [str(last)]}).json() == {"deleted": 1}
            may_load.set()
        wait_for(lambda: client.get("/info").json()["dim"] == 12)
        wait_for_more()
        if variant not in STARTERS:
            roll_back(place, lambda made_with: readers[old], lambda made_with: refiners[old])
            wait_for(lambda: client.get("/info").json()["dim"] == 8)
            wait_for_more()
        stop.set()
        adding.join()
        searching.join()
    assert set(answers) == {200, 201}
    index = Index.load(place)
    assert len(index) == len(added) + (5 if variant in STARTERS else 6)  # each was added once
    model = readers[new if variant in STARTERS else old].loaded_model
    wanted = model.embed([Image.open(io.BytesIO(data)) for data in added.values()], progress=False)
    if variant == "refined":  # a query is refined by itself too, and so is another vector than in the index
        assert index.refiner_fingerprint == refiners[old].fingerprint()  # type: ignore[union-attr]
        found = index.query_vectors(list(added))
    else:
        found = index.vectors_of(np.array(list(added)))
        assert min(scores) > (2.95 if variant == "local" else 0.999)  # each finds itself, so no search mixes models
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    if variant == "local":
        assert len(index.local_codes(index.metadata.ids)) == len(index)


def refiner(reader: EmbeddingReader) -> ContextRefiner:
    """A refiner for the model of a reader, which is not the identity."""
    made = ContextRefiner(dim=reader.loaded_model.dim, num_heads=2, neighbors=3)
    made.model_fingerprint = reader.fingerprint
    for weight in made.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return made
