"""The client: what an index answers, over HTTP, and what it makes of errors and of a busy service."""

from __future__ import annotations

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

from tests.serving.page_server import COLORS, MeanColor, Watched, draw, make_index, serve, watched_app
from vicinal.data import Table
from vicinal.retrieval import Index, search_images
from vicinal.serving.client import Client
from vicinal.utils.errors import InputError

RNG = np.random.default_rng(0)
Answer = Callable[[httpx.Request], httpx.Response]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def index(folder: Path) -> Index:
    return Index.load(make_index(folder))


@pytest.fixture(scope="module")
def service(folder: Path, index: Index) -> Iterator[tuple[str, Watched]]:
    app = watched_app(folder / "index", MeanColor())
    with serve(app) as address:
        yield address, app


@pytest.fixture
def client(service: tuple[str, Watched]) -> Iterator[Client]:
    address, app = service
    app.notes.clear()
    with Client(address) as opened:
        yield opened


def answering(answer: Answer, **options: Any) -> Client:
    return Client("http://127.0.0.1:1", transport=httpx.MockTransport(answer), **options)


def problem(status: int, detail: str = "the reason", **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"title": "No", "status": status, "detail": detail}, headers=headers)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds of each wait, which takes no time."""
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    return waited


@pytest.mark.parametrize("kind", [np.float64, torch.float32])
def test_vectors_are_searched_as_by_the_index(client: Client, index: Index, kind: Any) -> None:
    vectors = RNG.random((5, 3))
    queries = torch.tensor(vectors, dtype=kind, requires_grad=True) if kind is torch.float32 else vectors
    found, expected = client.search(queries, k=4), index.search(vectors, k=4)
    assert (found.ids == expected.ids).all()
    assert (found.ids.dtype, found.scores.dtype) == (np.int64, np.float32)
    assert found.scores == pytest.approx(expected.scores, abs=1e-6)
    cheap = client.search(queries, k=4, where="price < 9")
    assert (cheap.ids == index.search(vectors, k=4, among=index.where("price < 9")).ids).all()


def test_images_are_searched_as_by_the_index(client: Client, index: Index, folder: Path) -> None:
    paths = [str(draw(folder / f"{color}.png", color)) for color in COLORS]
    vectors = MeanColor().embed([Image.open(path) for path in paths])
    assert client.embed(paths) == pytest.approx(vectors, abs=1e-6)
    results = client.search(paths, k=3, group_by="size")
    expected = search_images(index, vectors, Table(pd.DataFrame({"path": paths})), 3, group_by="size")
    for each, other in zip(results, expected, strict=True):
        assert each.query == other.query
        assert [match["id"] for match in each.matches] == [match["id"] for match in other.matches]
        assert each.matches[0]["path"] == Path(other.matches[0]["path"]).name  # not where it lies at the service
        assert each.matches[0].keys() == other.matches[0].keys()
        assert each.decision.is_match  # type: ignore[attr-defined]
        assert each.decision.label == each.matches[0]["label"]  # type: ignore[attr-defined]
    assert not client.search(paths[:1], k=1, min_score=0.99999)[0].decision.is_match  # type: ignore[attr-defined]


def test_images_are_paths_bytes_pictures_or_a_table(client: Client, service: tuple[str, Watched], folder: Path) -> None:
    path = draw(folder / "halves.png", "red", "blue")
    picture = Image.open(path)
    kinds: list[Any] = [[path], [path.read_bytes()], [picture], Table(pd.DataFrame({"path": [str(path)]}))]
    vectors = [client.embed(images)[0] for images in kinds]
    assert np.ptp(vectors, axis=0).max() < 1e-6
    boxed = pd.DataFrame({"path": [str(path)] * 2, "x_1": [0, 60], "y_1": [0, 0], "x_2": [60, 120], "y_2": [80, 80]})
    found = client.search(Table(boxed), k=1)
    assert [each.matches[0]["label"] for each in found] == ["red", "blue"]
    assert found[1].query["box"] == [60, 0, 120, 80]
    sent = b"".join(note["body"] for note in service[1].searches())
    assert b"[60, 0, 60, 80]" in sent or b"[60.0, 0.0, 60.0, 80.0]" in sent  # left, top, width, height


def test_images_are_added_looked_up_and_deleted(tmp_path: Path) -> None:
    app = watched_app(make_index(tmp_path), MeanColor(), token="kiwi" * 4, read_only=False)
    with serve(app) as address, Client(address, token="kiwi" * 4) as client:
        number = len(client)
        paths = [str(draw(tmp_path / f"{color}.png", color)) for color in COLORS]
        table = Table(pd.DataFrame({"path": paths, "label": list(COLORS), "price": [100.5, 101.5, 102.5]}))
        ids = client.add(table)
        assert sorted(ids) == [number, number + 1, number + 2]
        assert client.lookup(ids)[["label", "price"]].to_numpy().tolist() == [
            ["red", 100.5], ["green", 101.5], ["blue", 102.5],
        ]  # fmt: skip
        added = client.add(np.eye(3), Table(pd.DataFrame({"price": [7.0, 8.0, 9.0]})))
        assert len(client) == number + 6
        assert client.search(np.eye(3), k=1, where="price == 7 or price == 9").ids[[0, 2], 0].tolist() == [
            added[0], added[2],
        ]  # fmt: skip
        assert client.delete(ids[:2]) == 2
        assert client.delete(where="price > 100") == 1
        assert len(client) == number + 3
        with pytest.raises(InputError, match=f"{ids[0]}"):
            client.lookup([ids[0]])
        assert "limits" in client.info()


WRONG: dict[str, tuple[Callable[[Client], Any], str]] = {
    "a single path": (lambda client: client.embed("cup.jpg"), "give a list of images"),
    "a missing file": (lambda client: client.embed(["no/cup.jpg"]), "no/cup.jpg: no such file"),
    "no image": (lambda client: client.embed([3]), "int is not an image"),  # type: ignore[list-item]
    "no images": (lambda client: client.embed([]), "at least one"),
    "a vector": (lambda client: client.search(np.ones(3), k=1), r"float64 \[3\]; give finite numbers \[n, dim\]"),
    "NaN": (lambda client: client.search(np.full((1, 3), np.nan), k=1), "finite"),
    "another dimension": (lambda client: client.search(np.ones((1, 4)), k=1), "dimensions"),
    "a large k": (lambda client: client.search(np.ones((1, 3)), k=19), "k = 19 exceeds the 18 images"),
    "groups of vectors": (lambda client: client.search(np.ones((1, 3)), group_by="size"), "group_by: for images"),  # type: ignore[call-overload]
    "an unknown option": (lambda client: client.search([Image.new("L", (8, 8))], sort="size"), "sort"),
    "an unknown column": (lambda client: client.search(np.ones((1, 3)), where="prize < 3"), "did you mean 'price'"),
    "more rows than images": (lambda client: client.add(np.ones((1, 3)), Table(pd.DataFrame({"a": [1, 2]}))), "2 rows"),
    "nothing to delete": (lambda client: client.delete(), "either ids or where"),
    "no address": (lambda _: Client("127.0.0.1:8000"), "not the address of a service"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_an_error_of_one_line(client: Client, name: str) -> None:
    call, message = WRONG[name]
    with pytest.raises(InputError, match=message) as caught:
        call(client)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 500, 504])
def test_errors_of_the_service_have_its_reason(status: int) -> None:
    with pytest.raises(InputError if status < 500 else OSError, match="the reason") as caught:
        answering(lambda _: problem(status)).info()
    assert str(caught.value) == "http://127.0.0.1:1: the reason"


def test_other_answers_are_errors_too() -> None:
    with pytest.raises(OSError, match="not JSON; is this a service of vicinal serve"):
        answering(lambda _: httpx.Response(200, text="<html>")).info()
    with pytest.raises(InputError, match=r"Not Found \(HTTP 404\)"):
        answering(lambda _: httpx.Response(404, text="<html>")).info()

    def too_slow(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("", request=request)

    with pytest.raises(TimeoutError, match="no answer within 3 seconds"):
        answering(too_slow, timeout=3).info()
    with pytest.raises(ConnectionError, match=r"^http://127\.0\.0\.1:9: "):
        Client("http://127.0.0.1:9").info()  # the port of the discard protocol


def test_a_busy_service_is_asked_again_as_it_says(waits: list[float]) -> None:
    answers = iter([problem(429, **{"Retry-After": "3"}), problem(503), problem(429, **{"Retry-After": "Mon, 1 Jan"}),
                    problem(503, **{"Retry-After": "999999"}), httpx.Response(200, json={"images": 7})])  # fmt: skip
    assert len(answering(lambda _: next(answers))) == 7
    assert waits == [3, 1, 1, 60]


def test_a_service_that_stays_busy_is_an_error(waits: list[float]) -> None:
    requests: list[httpx.Request] = []
    client = answering(lambda request: requests.append(request) or problem(429, "the queue is full"), num_retries=2)
    with pytest.raises(OSError, match="the queue is full"):
        client.info()
    assert len(requests) == 3
    assert len(waits) == 2


def test_what_is_added_again_has_the_same_key(waits: list[float]) -> None:
    keys: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["Idempotency-Key"])
        return problem(503) if len(keys) == 1 else httpx.Response(201, json={"ids": [str(len(keys))]})

    client = answering(answer)
    assert client.add(np.ones((1, 3))).tolist() == [2]
    assert client.add(np.ones((1, 3))).tolist() == [3]
    assert keys[0] == keys[1] != keys[2]


def test_after_an_error_no_others_are_begun() -> None:
    rows: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        row = json.loads(request.content)["vector"][0]
        rows.append(row)
        time.sleep(0.005)
        return problem(422, f"row {row:g}")

    with pytest.raises(InputError, match="row 0"):
        answering(answer).search(np.arange(1000.0)[:, None], k=1)
    assert len(rows) < 500


def test_the_token_is_sent_and_not_shown() -> None:
    sent: list[str] = []
    client = answering(
        lambda request: sent.append(request.headers["Authorization"]) or httpx.Response(200, json={"images": 1}),
        token="kiwi",
    )
    assert len(client) == 1
    assert sent == ["Bearer kiwi"]
    assert "kiwi" not in repr(client)
