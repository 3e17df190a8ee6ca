"""Bad input of every class, and how it is answered: by a problem in one line, never a 500, and the service goes on."""

import base64
import io
import json
import time
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

from tests.bad_input.test_arrays import png
from tests.serving.service import DIM, noise, picture, vector_list

JSON = {"content-type": "application/json"}
GOOD = vector_list(0)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


IMAGES = {
    "empty": b"",
    "text": b"hello",
    "truncated JPEG": picture(kind="JPEG", size=(300, 300))[:300],
    "truncated PNG": noise(0)[:200],
    "a header alone": b"\xff\xd8\xff\xe0",
    "bomb": png(60_000, 60_000, 8, 2),
    "more pixels than allowed": picture(0, (1_001, 1_000), "PNG", "L"),
    "a header of more pixels than there are": png(1_001, 1_000, 8, 2),
    "no pixels": png(0, 0, 8, 2),
    "SVG": b"<svg xmlns='http://www.w3.org/2000/svg' onload='x()'/>",
    "EPS, which runs Ghostscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    "PDF": b"%PDF-1.4\n",
    "a pickle": b"\x80\x04cos\nsystem\n(S'false'\ntR.",
    "HEIC": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic",
    "a lying GIF": b"GIF89a" + b"\xff" * 40,
    "TIFF with a loop of directories": b"II*\0\x08\0\0\0\x01\0\x00\x01\x04\0\x01\0\0\0\x08\0\0\0\x08\0\0\0",
}
IMAGE = encoded(noise(0))
BODIES: list[tuple[int, bytes | str]] = [
    (400, ""), (400, "{"), (400, "{}{}"), (400, b'{"id": "\xff\xfe"}'), (400, "[" * 100_000),
    (400, '{"vector": ' + "[" * 100_000 + "]" * 100_000 + "}"), (400, '{"id": ' + "9" * 10_000 + "}"),
    (422, "[]"), (422, "null"), (422, "{}"), (404, json.dumps({"id": 10**9})), (422, '{"id": 1, "min_score": NaN}'),
    *((422, '{"vector": [' + ",".join([number] * DIM) + "]}") for number in ("NaN", "1e999", "1e300")),
]  # fmt: skip
"""Bodies of searches and the status of the answer."""
FIELDS: dict[str, list[Any]] = {
    "id": [-1, 2**64, "1e3", "01", str(2**63), "\u0663", "../../etc/passwd", 1.5, True],
    "vector": [["1"] * DIM, [1.0], [], [0.5] * 70_000, [GOOD], [True] * DIM],
    "image": ["!!!", "data:image/png;base64," + IMAGE, "é" * 8, [1, 2, 3]],
    "url": ["https://example.com/x.png", "http://127.0.0.1:22/", "file:///etc/passwd"],
}
"""Bad values of a field that says what is searched for."""
OPTIONS: dict[str, list[Any]] = {
    "vector": [GOOD],  # a second source
    "topk": [3], "__class__": ["x"], "k": [0, -5, 10**9, "5", None], "min_probability": [2, 0.5],
    "rerank": ["__import__"], "group_by": ["nope", "__class__"], "box": [[0, 0, 5, 5]],
    "filter": [
        "", "__import__('os').system('true')", "price.__class__ == 3", "prize < 3", "price < 'a'", "price < 3\0",
        "price < 3 or " * 400 + "price < 3", "(" * 90 + "price < 3" + ")" * 90 + "(", "\x1b[2J\u202e",
        "price in [" + "1," * 60 + "1]",
    ],
}  # fmt: skip
"""Bad values of a further field of a search for an item."""
BOXES = [[0, 0, 5], ["a", 0, 5, 5], [500, 500, 5, 5], [5, 5, 0, 0], [5, 5, -3, -3]]
COLUMNS: list[Any] = [
    [1], {"a": {"b": 1}}, {"a": [1]}, {"id": 3}, {"path": "/etc/passwd"}, {"x_1": 3}, {"file_hash": "x"},
    {"split": "nope"}, {"": 3}, {"a" * 1000: 3}, {"note": "a\0b"}, {"note": "x" * 10_000}, {"big": 2**70},
    {"price": "cheap"}, {"price": 1.5}, {"new": 1}, {f"c{i}": i for i in range(200)},
]  # fmt: skip
ITEMS: list[dict[str, Any]] = [
    {}, {"vector": GOOD, "image": IMAGE}, {"vector": GOOD, "label": ""}, {"vector": GOOD, "label": ["a"]},
    {"vector": GOOD, "label": "a", "columns": {"label": "b"}},
    *({"vector": GOOD, "columns": columns} for columns in COLUMNS),
]  # fmt: skip
DELETES: list[Any] = [
    {}, {"ids": [1], "filter": "price < 3"}, {"ids": ["1", "all"]}, {"ids": "1"}, {"ids": [-1]},
    {"ids": list(range(20_000))}, {"filter": "exit()"}, {"filter": " "},
]  # fmt: skip


@pytest.fixture(autouse=True)
def _answers_afterwards(client: TestClient) -> Any:
    number = client.get("/info").json()["images"]
    yield
    assert client.post("/search", json={"id": 3, "k": 1}).json()["matches"][0]["id"] == "3"
    assert client.get("/info").json()["images"] == number, "something was added or deleted"


def check(response: Any, status: int, name: str) -> None:
    assert response.status_code == status, (name, response.status_code, response.text[:300])
    assert response.headers["content-type"] == "application/problem+json", name
    problem = response.json()
    assert set(problem) == {"type", "title", "status", "detail"}, name
    assert problem["status"] == status
    assert "\n" not in problem["detail"], name
    for word in ("/tmp", "/work", "/root", "Traceback", "vicinal-", ".py"):
        assert word not in problem["detail"], (name, problem["detail"])


def test_images(client: TestClient) -> None:
    for name, data in IMAGES.items():
        for path in ("/search", "/embed", "/items"):
            check(client.post(path, files={"image": ("../../x.png", data)}), 422, f"{name}, {path}")


def test_bodies_of_searches(client: TestClient) -> None:
    for status, body in BODIES:
        check(client.post("/search", content=body, headers=JSON), status, str(body[:60]))
    bad = [{name: value} for name, values in FIELDS.items() for value in values]
    bad += [{"id": 1, name: value} for name, values in OPTIONS.items() for value in values]
    bad += [{"image": IMAGE, "box": box} for box in BOXES]
    for fields in bad:
        check(client.post("/search", json=fields), 422, str(fields)[:99])


def test_boxes_beyond_all_numbers_cost_no_process(client: TestClient) -> None:
    for box in ([1e308] * 4, [-1e308, 0, 1e308, 5], [0, -1e308, 5, 1e308]):
        check(client.post("/search", json={"image": encoded(noise(0)), "box": box}), 422, str(box))
    whole = client.post("/embed", json={"image": encoded(noise(0))}).json()
    box = [-1e308, -1e308, 1.5e308, 1.5e308]
    assert client.post("/embed", json={"image": encoded(noise(0)), "box": box}).json() == whole
    assert "vicinal_decoder_deaths 0" in client.get("/metrics").text


def test_bodies_of_items(client: TestClient) -> None:
    for body in ITEMS:
        check(client.post("/items", json=body), 422, str(body)[:199])
    lone = json.dumps({"vector": GOOD, "columns": {"note": "\ud800"}})
    check(client.post("/items", content=lone, headers=JSON), 400, "half of a character")
    for key in ("", "x" * 1000):
        response = client.post("/items", json={"vector": GOOD}, headers={"Idempotency-Key": key})
        check(response, 422, f"key of {len(key)} characters")


def test_bodies_of_deletes(client: TestClient) -> None:
    for body in DELETES:
        check(client.request("DELETE", "/items", json=body), 422, str(body)[:99])
    check(client.request("DELETE", "/items", content=b"", headers=JSON), 400, "no body")
    check(client.request("DELETE", "/items", files={"image": b"x"}), 415, "a form")


def test_bodies_of_many_values_are_refused_before_they_are_parsed(client: TestClient) -> None:
    """Each of them took seconds and gigabytes, in which nobody else was answered."""
    keys = ",".join(f'"{i:x}":1' for i in range(400_000))
    bodies = {
        "keys": ("POST", "/search", "{" + keys + "}"),
        "columns": ("POST", "/items", json.dumps({"vector": GOOD})[:-1] + ',"columns":{' + keys + "}}"),
        "ids": ("DELETE", "/items", '{"ids":[' + "1," * 2_000_000 + "1]}"),
        "objects": ("POST", "/search", '{"vector":[' + "{}," * 1_000_000 + "1]}"),
    }
    for name, (method, path, body) in bodies.items():
        start = time.process_time()
        check(client.request(method, path, content=body, headers=JSON), 422, name)
        assert time.process_time() - start < 0.5, name
    form = {"columns": "{" + keys[:1_000_000].rpartition(",")[0] + "}"}
    check(client.post("/items", data=form, files={"image": noise(0)}), 422, "a form")


def test_bodies_that_are_long_and_good(client: TestClient) -> None:
    image = encoded(noise(0))
    spaces = " " * 1_000_000  # parsed in a thread
    response = client.post("/search", content=f'{{"image": "{image}", "k": 1 {spaces}}}', headers=JSON)
    assert response.status_code == 200, response.text
    ids = [str(2**62 + number) for number in range(10_000)]
    assert client.request("DELETE", "/items", json={"ids": ids}).json() == {"deleted": 0}


def test_content_types_and_forms(client: TestClient) -> None:
    form = b'--x\r\nContent-Disposition: form-data; name="k"\r\n\r\n5\r\n--x--\r\n'
    file = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n%s\r\n--x--\r\n'
    cases: dict[str, tuple[int, bytes, str | None]] = {
        "no type": (415, b"{}", None),
        "text": (415, b"{}", "text/plain"),
        "XML": (415, b"<a/>", "application/xml"),
        "a form without files": (415, b"id=3", "application/x-www-form-urlencoded"),
        "a type without end": (415, b"{}", "a" * 500),
        "no boundary": (400, form, "multipart/form-data"),
        "another boundary": (400, form, "multipart/form-data; boundary=y"),
        "a form cut off": (422, form[:30], "multipart/form-data; boundary=x"),
        "a form without a source": (422, form, "multipart/form-data; boundary=x"),
        "a form without content": (422, b"", "multipart/form-data; boundary=x"),
        "a broken header": (400, b"--x\r\nnonsense\r\n\r\n5\r\n--x--", "multipart/form-data; boundary=x"),
        "an unknown charset": (422, form, "multipart/form-data; boundary=x; charset=nope"),
        "many fields": (400, form[:-7] * 5_000 + b"--x--\r\n", "multipart/form-data; boundary=x"),
        "two images": (400, file[:-7] % noise(0) + file % noise(0), "multipart/form-data; boundary=x"),
    }
    for name, (status, body, kind) in cases.items():
        headers = {} if kind is None else {"content-type": kind}
        check(client.post("/search", content=body, headers=headers), status, name)
    fields: dict[str, dict[str, Any]] = {
        "k as a word": {"k": "many"},
        "a box that is not JSON": {"box": "[1, 2"},
        "a box that is a number": {"box": "5"},
        "a box of NaN": {"box": "[NaN, 0, 1, 1]"},
        "an unknown field": {"nope": "1"},
        "an id too": {"id": "3"},
        "the same twice": {"k": ["3", "4"]},
    }
    for name, data in fields.items():
        check(client.post("/search", files={"image": ("a", noise(0))}, data=data), 422, name)
    check(client.post("/search", files={"vector": ("a", b"[1]")}), 422, "a vector that is a file")
    check(client.post("/search", files={"image": (None, "text")}), 422, "an image that is text")


def test_addresses_and_methods(client: TestClient) -> None:
    for path in ("/items/-1", "/items/abc", "/items/1e3", "/items/9999999999999999999999", "/items/%00", "/items/٣",
                 "/items/..%2f..%2fetc%2fpasswd", "/items/3/../../x", "/nope", "/static/../service.py",
                 "/static/%2e%2e/service.py", "/static/..%2fservice.py", "/static/nope.js", "/items/3/image/x",
                 "/items/99/image", "//etc/passwd", "/openapi.yaml"):  # fmt: skip
        check(client.get(path), 404, path)
    for size in ("0", "-1", "abc", "99999", "1e2", "", "٣", "9" * 5000):
        check(client.get("/items/3/image", params={"size": size}), 422, f"size {size[:9]}")
    for method, path in (("PUT", "/search"), ("GET", "/search"), ("PATCH", "/items/3"), ("DELETE", "/items/3"),
                         ("POST", "/info"), ("TRACE", "/info"), ("BREW", "/items")):  # fmt: skip
        check(client.request(method, path), 405, f"{method} {path}")


def test_an_image_of_every_mode_is_no_defect(client: TestClient) -> None:
    """Whatever Pillow writes is embedded, or refused in one line."""
    for kind in ("PNG", "TIFF", "GIF", "BMP", "WEBP", "JPEG", "PPM", "TGA", "ICO", "JPEG2000"):
        for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I", "I;16", "F"):
            buffer = io.BytesIO()
            try:
                Image.new(mode, (17, 23)).save(buffer, kind)
            except Exception:  # which this format cannot hold
                continue
            response = client.post("/embed", files={"image": ("x", buffer.getvalue())})
            assert response.status_code == (422 if kind == "ICO" else 200), (kind, mode, response.text)
            if response.status_code == 200:
                assert np.isfinite(response.json()["vector"]).all(), (kind, mode)


def test_random_bytes(client: TestClient) -> None:
    """Good images and bodies with some bytes changed: answered, and never by a 500."""
    rng, good = np.random.default_rng(0), [noise(1), picture(kind="JPEG"), picture(kind="GIF"), picture(kind="TIFF")]
    for number in range(60):
        data = bytearray(good[number % len(good)])
        for place in rng.integers(0, len(data), 6):
            data[place] = rng.integers(256)
        assert client.post("/search", files={"image": ("x", bytes(data))}).status_code in (200, 422)
    body = json.dumps({"vector": GOOD, "k": 3, "filter": "price < 3 and new", "group_by": "label"}).encode()
    for _ in range(200):
        data = bytearray(body)
        for place in rng.integers(0, len(data), 3):
            data[place] = rng.integers(256)
        assert client.post("/search", content=bytes(data), headers=JSON).status_code in (200, 400, 422)
