"""A service in a process of its own, and clients that cost little: keep-alive connections that send prepared bytes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


@dataclass
class Process:
    """A running `vicinal serve`.

    Attributes:
        process: the process.
        address: where it listens.
        log: what it wrote to stderr, the last lines.
    """

    process: subprocess.Popen[str]
    address: str
    log: list[str] = field(default_factory=list)

    @property
    def megabytes(self) -> float:
        """Memory that the process has in use."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    @property
    def num_files(self) -> int:
        """Number of open files and connections."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


@contextmanager
def serving(folder: Path, *words: str) -> Iterator[Process]:
    """Serve an index for a block."""
    command = [sys.executable, "-m", "vicinal", "serve", str(folder), "--port", "0", "--no_access_log", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            lines: list[str] = []
            while not (line := process.stderr.readline()).startswith("serving"):
                lines.append(line)
                if not line:
                    raise RuntimeError("".join(lines))
            service = Process(process, line.split()[-1])
            threading.Thread(target=_keep, args=(process.stderr, service.log), daemon=True).start()
            yield service
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def _keep(lines: Any, log: list[str]) -> None:
    for line in lines:
        log.append(line)
        del log[:-1000]


def json_request(path: str, body: Any, method: str = "POST") -> bytes:
    """The bytes of a request with a body in JSON."""
    return raw_request(path, body if isinstance(body, bytes) else json.dumps(body).encode(), "application/json", method)


def image_request(path: str, image: bytes, fields: dict[str, str] | None = None) -> bytes:
    """The bytes of a request with a form that has an image."""
    boundary = uuid.uuid4().hex
    parts = [f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
             for name, value in (fields or {}).items()]  # fmt: skip
    parts += [f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\n'.encode(), image]
    return raw_request(path, b"".join([*parts, f"\r\n--{boundary}--\r\n".encode()]),
                       f"multipart/form-data; boundary={boundary}")  # fmt: skip


def raw_request(path: str, body: bytes, kind: str, method: str = "POST") -> bytes:
    """The bytes of a request."""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


class Connection:
    """A connection that is opened when it is needed."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self._place = parts.hostname, parts.port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """The status and the body of the answer; the connection is opened again after an error."""
        try:
            if self._writer is None or self._reader is None:
                self._reader, self._writer = await asyncio.open_connection(*self._place)
            self._writer.write(request)
            head = await self._reader.readuntil(b"\r\n\r\n")
            status = int(head.split(b" ", 2)[1])
            lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
            body = await self._reader.readexactly(int(lines.get(b"content-length", b"0")))
            if lines.get(b"connection") == b"close":
                self.close()
            return status, body
        except BaseException:
            self.close()
            raise

    async def hang_up(self, request: bytes, seconds: float) -> None:
        """Send a request, and go before the answer comes."""
        self._reader, self._writer = await asyncio.open_connection(*self._place)
        self._writer.write(request)
        await asyncio.sleep(seconds)
        self.close()

    def close(self) -> None:
        """Close it."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


@dataclass(frozen=True)
class Measurement:
    """What clients saw that each ask again at once.

    Attributes:
        latencies: seconds until each answer.
        seconds: until the last of these answers.
        num_refused: how often a client was told to come again, which it did; that is part of the latency.
        client_cpu: CPU seconds that the clients took per second, of which one thread can take 1.
    """

    latencies: list[float]
    seconds: float
    num_refused: int
    client_cpu: float

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.latencies) / self.seconds


def measure_load(address: str, requests: Sequence[bytes], num_clients: int, seconds: float) -> Measurement:
    """Have clients ask for some seconds, from when each has had an answer, so that all of them wait in turn by then."""
    return asyncio.run(_measure_load(address, requests, num_clients, seconds))


async def _measure_load(address: str, requests: Sequence[bytes], num_clients: int, seconds: float) -> Measurement:
    latencies: list[float] = []
    num_refused, num_waiting, all_answered, last_answer = 0, num_clients, asyncio.Event(), 0.0

    async def answered(connection: Connection, request: bytes) -> None:
        nonlocal num_refused
        while True:
            status, body = await connection.ask(request)
            if status == 200:
                return
            if status != 429:
                raise RuntimeError(f"status {status}: {body[:300]!r}")
            num_refused += 1
            await asyncio.sleep(0.1)

    async def client(number: int) -> None:
        nonlocal num_waiting, last_answer
        connection = Connection(address)
        for turn in count(number, num_clients):
            start = time.perf_counter()
            await answered(connection, requests[turn % len(requests)])
            last_answer = time.perf_counter()
            latencies.append(last_answer - start)
            if turn == number and (num_waiting := num_waiting - 1) == 0:
                all_answered.set()

    clients = [asyncio.create_task(client(number)) for number in range(num_clients)]
    warm = asyncio.create_task(all_answered.wait())
    await asyncio.wait([warm, *clients], return_when=asyncio.FIRST_COMPLETED)
    latencies.clear()
    num_refused, begin, cpu = 0, time.perf_counter(), time.process_time()
    failed, _ = await asyncio.wait(clients, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    # From the answers of one batch to those of another: requests in progress then are not counted, and have no time.
    whole, cpu = time.perf_counter() - begin, time.process_time() - cpu
    measured = Measurement(list(latencies), max(last_answer - begin, 1e-9), num_refused, cpu / whole)
    for each in (warm, *clients):
        each.cancel()
    await asyncio.gather(warm, *clients, return_exceptions=True)
    for each in failed:
        each.result()  # raises
    last = Connection(address)
    await answered(last, requests[0])  # after the batch that was worked on for clients that are gone
    last.close()
    return measured
