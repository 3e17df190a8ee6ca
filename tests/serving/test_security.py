"""Tokens, names of the service, pages of others, headers, and addresses that may be fetched."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from tests.refusals import refused_call
from tests.serving.service import client_of, save_index
from vicinal.serving.problems import Problem
from vicinal.serving.security import Access, Fetcher, access_for, read_token

TOKEN = "0123456789abcdef"


def test_a_token_is_needed_but_for_the_page_and_health(tmp_path: Path) -> None:
    with client_of(save_index(tmp_path), access=Access(TOKEN)) as client:
        for path in ("/", "/health", "/ready", "/static/app.js"):
            assert client.get(path).status_code == 200, path
        for path in ("/info", "/metrics", "/items/3", "/items/3/image", "/openapi.json", "/nope", "/Info"):
            assert client.get(path).status_code == 401, path
        for path in ("/search", "/embed", "/items"):
            assert client.post(path, content=b"x" * 10**6).status_code == 401, path
        for header in ("", TOKEN, f"Basic {TOKEN}", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer", "Bearer é",
                       f"Bearer {TOKEN.upper()}", "Bearer " + "x" * 5000):  # fmt: skip
            response = client.get("/info", headers={"Authorization": header.encode()})
            assert response.status_code == 401, header
            assert response.headers["WWW-Authenticate"].startswith("Bearer")
            assert TOKEN not in response.text
        for header in (f"Bearer {TOKEN}", f"bearer {TOKEN}", f"Bearer  {TOKEN} "):
            assert client.get("/info", headers={"Authorization": header}).status_code == 200, header


def test_names_of_the_service_and_pages_of_others(tmp_path: Path) -> None:
    access = access_for("127.0.0.1", None, ("https://shop.example",))
    with client_of(save_index(tmp_path), access=access) as client:
        for host in ("localhost:80", "127.0.0.1", "[::1]:9", "LOCALHOST"):
            assert client.get("/info", headers={"Host": host}).status_code == 200, host
        for host in ("evil.example", "127.0.0.1.evil.example", "", "localhost.evil:80", "[::2]"):
            assert client.get("/info", headers={"Host": host}).status_code == 400, host
        body = {"id": 3}
        for origin, status in (("http://127.0.0.1", 200), ("https://shop.example", 200), ("https://evil.example", 403),
                               ("null", 403), ("http://127.0.0.1:81", 403), ("http://[", 400)):  # fmt: skip
            assert client.post("/search", json=body, headers={"Origin": origin}).status_code == status, origin
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        allowed = client.options("/search", headers={"Origin": "https://shop.example", **asked})
        assert allowed.headers["Access-Control-Allow-Origin"] == "https://shop.example"
        refused = client.options("/search", headers={"Origin": "https://evil.example", **asked})
        assert "Access-Control-Allow-Origin" not in refused.headers


def test_headers_for_browsers(client: TestClient) -> None:
    for path in ("/", "/info", "/nope", "/items/3/image"):
        headers = client.get(path).headers
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'self'; img-src 'self' blob: data:"), path
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert "Access-Control-Allow-Origin" not in headers
        assert "server" not in headers


def test_the_log_has_no_queries_and_no_control_characters(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from vicinal.serving.app import create_app
    from vicinal.serving.service import Service

    app = create_app(Service(save_index(tmp_path)), Access(TOKEN), is_logged=True)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        client.get("/info?secret=1", headers={"Authorization": f"Bearer {TOKEN}"})
        client.get("/a%0Ab%1B[2J" + "x" * 5000)
    lines = capfd.readouterr().err.splitlines()
    assert [line.split()[3] for line in lines if "/info" in line] == ["/info"]
    assert [line.split()[4] for line in lines if "/info" in line] == ["200"]
    assert len(lines) == 2
    assert "\x1b" not in lines[1]
    assert len(lines[1]) < 400
    assert "secret" not in lines[0]
    assert TOKEN not in lines[0]


def test_who_may_listen_where() -> None:
    assert access_for("127.0.0.1", None).hosts == ("localhost", "127.0.0.1", "::1")
    assert access_for("0.0.0.0", TOKEN) == Access(TOKEN, None)
    for host in ("0.0.0.0", "::", "192.168.0.3", "shop.example"):
        refused_call("needs a token", access_for, host, None)
    for origin in ("*", "shop.example", "https://shop.example/", "ftp://shop.example", "null"):
        refused_call("cors_origin", access_for, "127.0.0.1", None, (origin,))


def test_tokens_come_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    monkeypatch.delenv("VICINAL_TOKEN", raising=False)
    assert read_token(None) is None
    monkeypatch.setenv("VICINAL_TOKEN", TOKEN)
    assert read_token(None) == TOKEN
    file.write_text(f"{TOKEN}9\n")
    assert read_token(str(file)) == f"{TOKEN}9"
    for content in (b"", b"short", b"\xff" * 40, b"a" * 20 + b"\n" + b"b" * 20, b"x" * 10_000):
        file.write_bytes(content)
        refused_call("token", lambda: read_token(str(file)))
    refused_call("no such file", lambda: read_token(str(tmp_path / "none")))


PUBLIC = "93.184.216.34"
URL = "https://images.example/cup.jpg?size=3"


def fetch(url: str, answer: Any, addresses: Sequence[str] = (PUBLIC,)) -> bytes:
    transport = httpx.MockTransport(answer)
    fetcher = Fetcher(["images.example"], 1000, lambda _: addresses, transport)
    return asyncio.run(fetcher.fetch(url))


def test_an_allowed_image_is_fetched_from_the_checked_address() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert (request.url.host, request.headers["host"]) == (PUBLIC, "images.example")
        assert request.extensions["sni_hostname"] == "images.example"
        assert request.url.path == "/cup.jpg"
        return httpx.Response(200, content=b"image")

    assert fetch(URL, answer) == b"image"


def test_nothing_else_is_fetched() -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise AssertionError(request.url)

    for url in ("http://images.example/x", "https://other.example/x", "https://images.example:444/x",
                "https://images.example.evil.example/", "https://user:pass@images.example/", "file:///etc/passwd",
                "https://evil.example#@images.example/", "https://images.example@evil.example/", "https://[::1]/",
                "https://127.0.0.1/", "https://images.example\\@evil.example", "//images.example/x", "", "https://",
                "https://images.example:99999/", "https://[images.example/", "https://images.example/\x01",
                "https://images.example/\x7f", "https://images.example/\ud800",
                "https://images.example/" + "é" * 40_000):  # fmt: skip
        with pytest.raises(Problem) as problem:
            fetch(url, fail)
        assert problem.value.status == 422, url
    for address in ("127.0.0.1", "10.0.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "::1", "fe80::1", "fd00::1",
                    "::ffff:127.0.0.1", "100.64.0.1", "224.0.0.1", "nonsense"):  # fmt: skip
        for addresses in ((address,), (PUBLIC, address)):
            with pytest.raises(Problem, match="no public address"):
                fetch(URL, fail, addresses)
    with pytest.raises(Problem, match="no public address"):
        fetch(URL, fail, ())


def test_answers_of_the_host_are_limited() -> None:
    answers = {
        "status 302": httpx.Response(302, headers={"Location": "http://127.0.0.1/"}),
        "status 404": httpx.Response(404),
        "more than": httpx.Response(200, content=b"x" * 5000),
    }
    for text, answer in answers.items():
        with pytest.raises(Problem, match=text):
            fetch(URL, lambda _, answer=answer: answer)

    def fail(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(Problem, match="cannot be fetched"):
        fetch(URL, fail)
