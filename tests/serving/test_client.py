"""The client: what an index answers, over HTTP, and what it makes of errors and of a busy service."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from tests.refusals import refused_call
from tests.serving.page_server import COLORS, MeanColor, Watched, draw, make_index, serve, watched_app
from vicinal.data import Table
from vicinal.retrieval import Index, match_images
from vicinal.serving.client import Client
from vicinal.utils.errors import InputError

RNG = np.random.default_rng(0)
Answer = Callable[[httpx.Request], httpx.Response]


@pytest.fixture
def client(service: tuple[str, Watched]) -> Iterator[Client]:
    with Client(service[0]) as opened:
        yield opened


@pytest.fixture
def index(service: tuple[str, Watched], folder: Path) -> Index:
    return Index.load(folder / "index")


def answering(answer: Answer, **options: Any) -> Client:
    return Client("http://127.0.0.1:1", transport=httpx.MockTransport(answer), **options)


def problem(status: int, detail: str = "the reason", **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"title": "No", "status": status, "detail": detail}, headers=headers)


def test_vectors_are_searched_as_by_the_index(client: Client, index: Index) -> None:
    vectors = RNG.random((5, 3))
    for where in (None, "price < 9"):
        results = client.search(torch.tensor(vectors, requires_grad=True), k=4, where=where)
        expected = index.search(vectors, k=4, among=index.select(where))
        assert [[match["id"] for match in each.matches] for each in results] == expected.ids.tolist()
        scores = [[match["score"] for match in each.matches] for each in results]
        assert np.array(scores) == pytest.approx(expected.scores, abs=1e-6)


def test_images_are_searched_as_by_the_index(client: Client, index: Index, folder: Path) -> None:
    paths = [draw(folder / f"{color}.png", color) for color in COLORS]
    vectors = MeanColor().embed([Image.open(path) for path in paths])
    assert client.embed(paths) == pytest.approx(vectors, abs=1e-6)
    assert client.embed([path.read_bytes() for path in paths]) == pytest.approx(vectors, abs=1e-6)
    results = client.search(paths, k=3, group_by="size")
    table = Table(pd.DataFrame({"path": [str(path) for path in paths]}))
    for each, other in zip(results, match_images(index, vectors, table, 3, group_by="size"), strict=True):
        assert each.query == other.query
        assert [match["id"] for match in each.matches] == [match["id"] for match in other.matches]
        assert each.matches[0]["path"] == Path(other.matches[0]["path"]).name  # not where it lies at the service
        assert each.matches[0].keys() == other.matches[0].keys()
        assert str(each.decision) == str(other.decision)
    assert "no match" in str(client.search(paths[:1], k=1, min_score=0.99999)[0])


def test_images_are_added_looked_up_and_deleted(tmp_path: Path) -> None:
    app = watched_app(make_index(tmp_path), MeanColor(), token="kiwi" * 4, read_only=False)
    with serve(app) as address, Client(address, token="kiwi" * 4) as client:
        number = len(client)
        paths = [str(draw(tmp_path / f"{color}.png", color)) for color in COLORS]
        table = Table(pd.DataFrame({"path": paths, "label": list(COLORS), "price": [100.5, 101.5, 102.5]}))
        ids = client.add(paths, table)
        assert sorted(ids) == [number, number + 1, number + 2]
        assert client.lookup(ids)[["label", "price"]].to_numpy().tolist() == [
            ["red", 100.5], ["green", 101.5], ["blue", 102.5],
        ]  # fmt: skip
        added = client.add(np.eye(3), Table(pd.DataFrame({"price": [7.0, 8.0, 9.0]})))
        assert len(client) == number + 6
        assert [client.search(np.eye(3), k=1)[row].matches[0]["id"] for row in (0, 2)] == [added[0], added[2]]
        assert client.delete(ids[:2]) == 2
        assert client.delete(where="price > 100") == 1
        assert len(client) == number + 3
        refused_call(f"{ids[0]}", client.lookup, [ids[0]])


def test_wrong_input_is_an_error_of_one_line(client: Client) -> None:
    two_rows = Table(pd.DataFrame({"a": [1, 2]}))
    for call, message in (
        (lambda: client.embed("cup.jpg"), "give a list of images"),
        (lambda: client.search(np.ones((1, 4)), k=1), "dimensions"),
        (lambda: client.search([b"x"], sort="size"), "sort"),
        (lambda: client.add(np.ones((1, 3)), two_rows), "2 rows"),
        (client.delete, "exactly one of ids, filter"),
        (lambda: client.search(np.array([[np.nan]]), k=1), "NaN or infinity"),
        (lambda: client.search(np.array([["a"]]), k=1), "or holds no numbers"),
        *((lambda url=url: Client(url), "not the address of a service") for url in ("127.0.0.1:8000", "http://[::1")),
    ):
        refused_call(message, call)


def test_errors_have_the_reason_of_the_service() -> None:
    for status in (400, 404, 422, 500, 504):
        with pytest.raises(InputError if status < 500 else OSError, match=r"1: the reason \(HTTP"):
            answering(lambda _, status=status: problem(status)).info()
    with pytest.raises(OSError, match="not JSON; is this a service of vicinal serve"):
        answering(lambda _: httpx.Response(200, text="<html>")).info()
    with pytest.raises(OSError, match="no reason"):
        answering(lambda _: httpx.Response(502, json=[])).info()
    with pytest.raises(OSError, match=r"^http://127\.0\.0\.1:9: "):
        Client("http://127.0.0.1:9").info()  # the port of the discard protocol


def test_a_busy_service_is_asked_again_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    answers = iter([problem(429, **{"Retry-After": "3"}), problem(503), problem(429, **{"Retry-After": "Mon, 1 Jan"}),
                    problem(503, **{"Retry-After": "999999"}), httpx.Response(200, json={"images": 7})])  # fmt: skip
    assert len(answering(lambda _: next(answers))) == 7
    assert waits == [3, 1, 1, 60]
    with pytest.raises(OSError, match="the queue is full"):
        answering(lambda _: problem(429, "the queue is full"), num_retries=2).info()
    assert len(waits) == 6
    keys: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["Idempotency-Key"])
        return problem(503) if len(keys) == 1 else httpx.Response(201, json={"ids": [str(len(keys))]})

    assert [answering(answer).add(np.ones((1, 3))).tolist() for _ in range(2)] == [[2], [3]]
    assert keys[0] == keys[1] != keys[2]


def test_after_an_error_no_others_are_begun() -> None:
    rows: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        row = json.loads(request.content)["vector"][0]
        rows.append(row)
        time.sleep(0.005)
        return problem(422, f"row {row:g}")

    refused_call("row 0", answering(answer).search, np.arange(1000.0)[:, None], k=1)
    assert len(rows) < 500
