"""`vicinal serve`: what is wrong is said in one line before anything is loaded; a real process, killed and stopped."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.conftest import ROOT, refused
from tests.serving.service import save_index, vector_list


def test_what_is_wrong_is_said_at_the_start(tmp_path: Path, run: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VICINAL_TOKEN", raising=False)
    folder, token = save_index(tmp_path), tmp_path / "token"
    token.write_text("short")
    for words, message in (
        ([folder, "--token_file", token], "a token has 16"),
        ([folder, "--max_k", "0"], "max_k = 0 must be at least 1"),
        ([folder, "--cors_origin", "*"], "give scheme and host alone"),
        ([folder, "--model", "no_such_model"], "model"),
        ([folder, "--onnx", token, "--model", "resnet18"], "give one of them"),
        ([folder, "--model", run, "--port", "0"], "the model gives 16 dimensions, the index has 8"),
    ):
        assert message in refused(capsys, "serve", *words)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert "needs the package fastapi; pip install 'vicinal[serve]'" in refused(capsys, "serve", folder)


@contextmanager
def process(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    command = [sys.executable, "-m", "vicinal", "serve", str(folder), "--port", "0", "--decode_workers", "1", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) as started:
        assert started.stderr is not None
        try:
            lines = []
            while "serving" not in (line := started.stderr.readline()):
                lines.append(line)
                assert line, "".join(lines)
            assert str(folder) in line
            with httpx.Client(base_url=line.split()[-1], timeout=300) as client:
                yield started, client
        finally:
            if started.poll() is None:
                started.kill()


@pytest.mark.slow
def test_a_request_in_flight_ends_before_the_service_stops(tmp_path: Path) -> None:
    folder = save_index(tmp_path)
    with process(folder) as (service, client):
        head = b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
        body = json.dumps({"vector": vector_list(0), "k": 1}).encode()
        with socket.create_connection((client.base_url.host, client.base_url.port or 0)) as connection:
            connection.sendall(head + b"%d\r\n\r\n" % len(body) + body[:10])
            assert client.get("/ready").status_code == 200
            service.send_signal(signal.SIGTERM)
            connection.sendall(body[10:])
            answer = connection.recv(10_000)
        assert answer.startswith(b"HTTP/1.1 200")
        assert service.wait(300) == 0
        assert service.stderr is not None
        assert "Traceback" not in service.stderr.read()
