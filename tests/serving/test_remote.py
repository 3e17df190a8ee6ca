"""The service of an index in a database: a real PostgreSQL, which is ended and started again."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from fastapi.testclient import TestClient

from tests.retrieval.remote.conftest import servers, unique_table  # noqa: F401
from tests.retrieval.remote.servers import Proxy, Server
from tests.serving.service import ADDRESS, client_of, noise, random_vectors, vector_list, wait_for
from vicinal import Embedder, Index, Table
from vicinal.cli.main import main
from vicinal.retrieval import RemoteIndex
from vicinal.retrieval.calibration import example_calibration
from vicinal.serving import remote_store
from vicinal.serving.app import create_app

ROWS = 12


def images(folder: Path) -> Table:
    (folder / "photos").mkdir()
    paths = [folder / "photos" / f"{number}.png" for number in range(ROWS)]
    for number, path in enumerate(paths):
        path.write_bytes(noise(number))
    columns = {"label": [f"class{n % 3}" for n in range(ROWS)], "price": range(ROWS), "new": [True, False] * 6}
    return Table(pd.DataFrame({"path": [str(path) for path in paths], **columns}))


def build(url: str, folder: Path, kind: Any = "exact") -> list[int]:
    table = images(folder)
    with RemoteIndex.build(random_vectors(ROWS), table, url, kind, root=str(folder / "photos")) as index:
        return index.ids_by_key(table.image_keys).tolist()


@pytest.fixture(scope="module")
def place(servers: dict[str, Server], tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[int]]:  # noqa: F811
    url = servers["postgresql"].url(unique_table())
    return url, build(url, tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def client(place: tuple[str, list[int]]) -> Iterator[TestClient]:
    with client_of(place[0], max_columns=9, max_rerank=20, decode_workers=1) as each:  # type: ignore[arg-type]
        yield each


def search(client: TestClient, **body: Any) -> list[int]:
    response = client.post("/search", json=body)
    assert response.status_code == 200, response.text
    return [int(match["id"]) for match in response.json()["matches"]]


def delete(client: TestClient, **body: Any) -> int:
    response = client.request("DELETE", "/items", json=body)
    assert response.status_code == 200, response.text
    return int(response.json()["deleted"])


def test_searches_are_those_of_the_index(client: TestClient, place: tuple[str, list[int]]) -> None:
    _, ids = place
    assert max(ids) > 2**53
    vectors = random_vectors(ROWS)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    nearest = [ids[row] for row in np.argsort(-unit @ unit[4])]
    assert search(client, vector=vectors[4].tolist(), k=50) == nearest
    assert search(client, id=str(ids[4]), k=3, exclude_id=str(ids[4])) == nearest[1:4]
    assert search(client, id=ids[4], k=3) == nearest[:3]
    assert search(client, id=ids[4], filter="price < 6 and new") == [n for n in nearest if n in ids[:6:2]]
    without = {"exclude_id": str(ids[4])}
    assert search(client, id=ids[4], filter="price < 9", **without) == [n for n in nearest[1:] if n in ids[:9]]
    assert len(search(client, id=ids[4], group_by="label")) == 3
    for body in ({"rerank": "query-expansion"}, {"rerank": "query-expansion", "filter": "price > 0"}):
        assert set(search(client, id=ids[4], k=20, **body)) == {*ids["filter" in body :]}
        assert ids[4] not in search(client, id=ids[4], k=20, **body, **without)
    assert search(client, id=ids[4], filter="price > 99") == []
    answer = client.post("/search", json={"id": ids[4], "k": 1, "min_score": 0.9}).json()
    assert (answer["is_match"], answer["label"], answer["matches"][0]["id"]) == (True, "class1", str(ids[4]))
    assert answer["matches"][0]["columns"] == {"path": "4.png", "price": 4, "new": True}
    assert client.get(f"/items/{ids[4]}").json()["columns"] == answer["matches"][0]["columns"]
    assert client.get(f"/items/{ids[4]}/image?size=20").headers["content-type"] == "image/jpeg"


def test_info_says_where_it_is_kept_without_more(client: TestClient, place: tuple[str, list[int]]) -> None:
    info = client.get("/info").json()
    assert (info["engine"], info["is_connected"], info["images"], info["dim"]) == ("postgresql", True, ROWS, 8)
    assert {column["name"]: column["type"] for column in info["columns"]} == {
        "label": "text", "price": "number", "new": "boolean"
    }  # fmt: skip
    assert info["name"] in place[0]
    assert not any(word in json.dumps(info) for word in ("postgres@", "host=", "photos"))
    assert client.get("/ready").json() == {"status": "ready"}
    message = client.service.without_paths(f"{client.service.store.place}: full")  # type: ignore[attr-defined]
    assert message == f"{info['name']}: full"


def test_changes_are_committed_when_they_are_answered(client: TestClient, place: tuple[str, list[int]]) -> None:
    body = {"vector": vector_list(99), "columns": {"price": 70, "note": "a é"}, "label": "class7"}
    (number,) = client.post("/items", json=body).json()["ids"]
    with Index.load(place[0]) as index:
        assert index.lookup([int(number)])["note"].tolist() == ["a é"]
    assert search(client, vector=vector_list(99), k=1) == [int(number)]
    keyed = [client.post("/items", json=body, headers={"Idempotency-Key": "a"}).json()["ids"] for _ in range(2)]
    assert keyed[0] == keyed[1] != [number]
    with client_of(place[0]) as other:  # type: ignore[arg-type]
        assert other.post("/items", json=body, headers={"Idempotency-Key": "a"}).json()["ids"] == keyed[0]
    assert delete(client, ids=[number, "5"]) == 1
    assert delete(client, filter="note == 'a é'") == 1
    assert delete(client, filter="note == 'a é'") == 0
    assert client.get(f"/items/{number}").status_code == 404


def test_what_is_not_there_is_said(client: TestClient) -> None:
    response = client.post("/search", json={"vector": vector_list(1), "filter": "path == '/etc'"})
    assert (response.status_code, "no column 'path'" in response.json()["detail"]) == (422, True)
    for path in ("/items/5", "/items/5/image", f"/items/{2**63}"):
        assert client.get(path).status_code == 404


def test_deletes_are_limited_before_ids_are_read(place: tuple[str, list[int]]) -> None:
    with client_of(place[0], max_delete=3, read_only=True) as client:  # type: ignore[arg-type]
        response = client.request("DELETE", "/items", json={"filter": "price >= 0"})
        assert (response.status_code, "more than 3 items" in response.text) == (422, True)
        assert client.request("DELETE", "/items", json={"filter": "price == 0"}).status_code == 405
        assert client.post("/items", json={"vector": vector_list(1)}).status_code == 405


def test_the_command_serves_a_url_with_the_model_of_the_index(
    servers: dict[str, Server], model: Embedder, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    model.save_pretrained(tmp_path / "run")
    url, index = servers["postgresql"].url(unique_table()), Index.load(pictures / "index")
    table = Table(index.metadata.frame.drop(columns="id"))
    made_with = {"model": str(tmp_path / "run")}
    RemoteIndex.build(index.vectors(), table, url, "exact", model.fingerprint(), made_with).close()
    services: list[Any] = []
    monkeypatch.setattr("vicinal.serving.app.run", lambda service, *_: services.append(service))
    assert main(["serve", url, "--decode_workers", "1", "--read_only"]) == 0
    with TestClient(create_app(services[0]), base_url=ADDRESS) as client:
        answer = client.post("/search", files={"image": ("x.png", noise(5))}, data={"k": "1"}).json()
        assert (answer["matches"][0]["label"], answer["matches"][0]["columns"]["price"]) == ("class2", 5)


def test_a_database_that_hangs_delays_its_own_requests_only(
    place: tuple[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()

    def hanging(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: goes_on.wait(60) and function(*arguments)

    with watched_often(monkeypatch), client_of(place[0]) as client, ThreadPoolExecutor(2) as pool:  # type: ignore[arg-type]
        engine = client.service.store.index._engine  # type: ignore[attr-defined]
        monkeypatch.setattr(engine, "search", hanging(engine.search))
        monkeypatch.setattr(engine, "write", hanging(engine.write))
        searched = pool.submit(search, client, id=place[1][4], k=1)
        added = pool.submit(client.post, "/items", json={"vector": vector_list(7), "label": "hung"})
        for path in ("/health", "/info", f"/items/{place[1][3]}"):
            assert client.get(path).status_code == 200
        assert not searched.done()
        assert not added.done()
        monkeypatch.setattr(remote_store, "SLOW_SECONDS", 0.2)
        monkeypatch.setattr(engine, "read_facts", hanging(engine.read_facts))
        wait_for(lambda: client.get("/ready").status_code == 503)
        assert client.post("/search", json={"vector": vector_list(1), "filter": "price < 3"}).status_code == 503
        goes_on.set()
        wait_for(lambda: client.get("/ready").status_code == 200)
        wait_for(lambda: searched.done() and added.done())
        wait_for(lambda: client.get("/info").json()["images"] == ROWS + 1)
        assert search(client, id=place[1][4], k=1) == place[1][4:5]
        delete(client, filter="label == 'hung'")


@contextmanager
def watched_often(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(remote_store, "WATCH_SECONDS", 0.1)
        patch.setattr(remote_store, "LOST_SECONDS", 0.1)
        yield


def check_refused(client: TestClient) -> None:
    """Every request that needs the database is answered by a 503 at once; the others as ever."""
    requests: list[tuple[str, str, Any]] = [
        ("POST", "/search", {"vector": vector_list(1)}),
        ("POST", "/search", {"vector": vector_list(1), "filter": "price < 3"}),
        ("POST", "/search", {"id": 3}),
        ("POST", "/items", {"vector": vector_list(1)}),
        ("DELETE", "/items", {"ids": [3]}),
        ("DELETE", "/items", {"filter": "price < 3"}),
        ("GET", "/items/3", None),
        ("GET", "/ready", None),
    ]
    for method, path, body in requests:
        response = client.request(method, path, json=body)
        assert response.status_code == 503, (method, path, response.text)
        assert int(response.headers["Retry-After"]) >= 1
        assert response.headers["content-type"] == "application/problem+json"
        assert "database of the index does not answer" in response.json()["detail"]
    assert client.get("/health").status_code == 200
    info = client.get("/info").json()
    assert info["is_connected"] is False
    assert info["images"] >= ROWS  # as they were counted last
    assert "vicinal_is_connected 0.0" in client.get("/metrics").text


def test_while_the_connection_is_cut_requests_are_told_to_come_again(
    servers: dict[str, Server],  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server, name = servers["postgresql"], unique_table()
    ids = build(server.url(name), tmp_path)
    monkeypatch.setenv("PGPASSWORD", "s3cret")
    with (
        Proxy(server.address) as proxy,
        watched_often(monkeypatch),
        client_of(server.url(name, proxy.port), request_seconds=3) as client,  # type: ignore[arg-type]
    ):
        proxy.is_down = True
        proxy.cut()
        response = client.post("/search", json={"vector": vector_list(1)})  # before anyone has noticed
        assert response.status_code == 503, response.text
        wait_for(lambda: client.get("/ready").status_code == 503)
        check_refused(client)
        shown = client.get("/info").text + client.get("/metrics").text + capsys.readouterr().err
        assert "s3cret" not in shown
        proxy.is_down = False
        wait_for(lambda: client.get("/ready").status_code == 200)
        assert search(client, id=ids[3], k=1) == [ids[3]]
        with RemoteIndex.connect(server.url(name)) as index:
            index.calibration = example_calibration()
        wait_for(lambda: client.get("/info").json()["calibration"] is not None)
        with RemoteIndex.build(random_vectors(3, dim=4), Table(pd.DataFrame({"a": range(3)})), server.url(name),
                               overwrite=True):  # fmt: skip
            wait_for(lambda: client.get("/ready").status_code == 503)
            assert "built again" in str(client.service.store._watcher.problem)  # type: ignore[attr-defined]
