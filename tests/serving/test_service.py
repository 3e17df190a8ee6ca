"""What the service leaves behind when a request fails, its client hangs up, or the index is another one."""

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.serving.service import client_of, noise, save_index
from vicinal import Embedder
from vicinal.serving import store as store_module
from vicinal.serving.bodies import ItemBody
from vicinal.serving.service import Service


def test_a_defect_is_a_500_that_is_counted_and_has_all_headers(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Service, "item", lambda *_: {}["/a/path"])
    response = client.get("/items/3")
    assert (response.status_code, response.headers["content-type"]) == (500, "application/problem+json")
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert "path" not in response.text
    assert "KeyError" in capfd.readouterr().err
    assert 'route="/items/{id}",status="500"} 1.0' in client.get("/metrics").text


def test_a_reader_refuses_changes_before_it_works_on_them(pictures: Path, model: Embedder) -> None:
    with client_of(pictures / "index", model, read_only=True) as reader:
        for files in ({"image": ("x", noise(1))}, {"image": ("x", b"no image")}):
            assert reader.post("/items", files=files).status_code == 405
        assert 'vicinal_batch_size_count{batch="embed"} 0.0' in reader.get("/metrics").text


def test_a_model_that_was_loaded_in_vain_closes_nothing_in_use(pictures: Path, model: Embedder) -> None:
    with client_of(pictures / "index", model, load_models=lambda _: (model, None), decode_workers=1) as client:
        for _ in range(2):  # nothing takes it into use, as where the index cannot be read after it
            client.service._load_model({})  # type: ignore[attr-defined]
            assert client.post("/search", files={"image": ("x", noise(1))}).status_code == 200


def test_a_client_that_hangs_up_leaves_no_image(
    tmp_path: Path, model: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_index(tmp_path)
    writes, may_go = [], threading.Event()
    real = store_module.write_bytes

    def slow(file: Path, data: bytes) -> None:
        writes.append(file)
        assert may_go.wait(60)
        real(file, data)

    monkeypatch.setattr(store_module, "write_bytes", slow)

    async def run() -> None:
        service: Any = Service(folder, model)
        async with service.running():
            adding = asyncio.create_task(service.add(ItemBody(image=noise(1)), None))
            while not writes:
                await asyncio.sleep(0.01)
            adding.cancel()
            with pytest.raises(asyncio.CancelledError):
                await adding
            may_go.set()
            while not writes[0].parent.exists() or os.listdir(writes[0].parent):
                await asyncio.sleep(0.01)
            assert len(service.index) == 30

    asyncio.run(asyncio.wait_for(run(), 120))
