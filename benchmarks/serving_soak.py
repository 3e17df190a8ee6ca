"""A service under mixed requests: searches, adds, deletes, hostile bodies, clients that hang up, and kills.

It is killed now and then (SIGKILL) and started again. In the end every item that was acknowledged is there and every
deleted one is not, no answer was a 500, and memory and open files of the last process have not grown since its start.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.http_load import Connection, Process, image_request, json_request, raw_request, serving
from benchmarks.serving import make_index, make_model, photos, random_neighborhoods
from vicinal import Index

SIZE, CLIENTS = 5_000, 32
REPORT_SECONDS = 10.0
LIMITS = ("--max_body_mb", "2", "--max_queue", "24")
SECONDS_TO_WARM = 0.2  # of a part, after which memory is compared
MAX_GROWTH = 60  # megabytes
HOSTILE = [
    json_request("/search", b"{"),
    json_request("/search", b"[" * 50_000),
    json_request("/search", {"vector": [1.0]}),
    json_request("/search", b'{"vector": [NaN]}'),
    json_request("/search", {"id": -1}),
    json_request("/search", {"id": 1, "k": 10**9}),
    json_request("/search", {"id": 1, "filter": "__import__('os')"}),
    json_request("/search", {"id": 1, "filter": "price < 'a'"}),
    json_request("/search", {"image": "!!!"}),
    json_request("/search", {"url": "http://169.254.169.254/"}),
    json_request("/items", {"vector": [0.5] * 128, "columns": {"path": "/etc/passwd"}}),
    json_request("/items", {"vector": [0.5] * 128, "columns": {"price": "cheap"}}),
    json_request("/items", {"ids": "all"}, "DELETE"),
    json_request("/search", {"vector": [0.5] * 400_000}),
    raw_request("/search", b"x" * 1000, "text/plain"),
    raw_request("/search", b"--x\r\nnonsense", "multipart/form-data; boundary=x"),
    raw_request("/embed", b"x" * 3_000_000, "application/json"),
    image_request("/search", b"not an image"),
    image_request("/embed", b"\xff\xd8\xff" + b"\0" * 5000),
    raw_request("/items/..%2f..%2fetc%2fpasswd", b"", "text/plain", "GET"),
    raw_request("/static/..%2f..%2fservice.py", b"", "text/plain", "GET"),
    raw_request("/items/1/image?size=99999999", b"", "text/plain", "GET"),
]


class Soak:
    """The clients, and what they know of the items."""

    def __init__(self) -> None:
        self.sent, self.begin = 0, time.monotonic()
        self.statuses: Counter[int | str] = Counter()
        self.added: dict[int, int] = {}  # id -> seed
        self.images: set[int] = set()  # those that were added as images
        self.deleted: set[int] = set()
        self.tried: set[int] = set()  # deletes that may have been made
        self.rng = random.Random(0)
        self.photos = photos(16)
        self.vectors = random_neighborhoods(64, seed=3)

    async def run(self, address: str, until: int) -> None:
        """Send requests until so many were sent, or the service is gone."""
        await asyncio.gather(*(self._client(address, until) for _ in range(CLIENTS)))

    async def _client(self, address: str, until: int) -> None:
        connection = Connection(address)
        while self.sent < until:
            self.sent += 1
            try:
                await self._one(connection, self.rng.random())
            except (OSError, asyncio.IncompleteReadError):  # hung up, or the service was killed
                self.statuses["no answer"] += 1
                await asyncio.sleep(0.01)
        connection.close()

    async def _one(self, connection: Connection, chance: float) -> None:
        if chance < 0.45:
            body = self.rng.choice([
                {"vector": self.vectors[self.rng.randrange(64)].tolist(), "k": 5},
                {"id": self.rng.randrange(SIZE), "exclude_id": 3},
                {"vector": self.vectors[0].tolist(), "filter": f"price < {self.rng.randrange(97)}", "k": 3},
            ])  # fmt: skip
            await self._ask(connection, json_request("/search", body))
        elif chance < 0.55:
            await self._ask(connection, image_request("/search", self.rng.choice(self.photos)))
        elif chance < 0.7:
            await self._add(connection)
        elif chance < 0.78:
            await self._delete(connection)
        elif chance < 0.93:
            await self._ask(connection, self.rng.choice(HOSTILE))
        else:
            request = self.rng.choice([image_request("/search", self.photos[0]), json_request("/search", {"id": 1})])
            await connection.hang_up(request[: self.rng.randrange(1, len(request) + 1)], 0.01 * self.rng.random())
            self.statuses["hung up"] += 1

    async def _ask(self, connection: Connection, request: bytes) -> tuple[int, Any]:
        status, body = await connection.ask(request)
        self.statuses[status] += 1
        if status == 429:
            await asyncio.sleep(0.02)
        return status, body

    async def _add(self, connection: Connection) -> None:
        """Add a vector or, one time in four, an image."""
        seed = self.sent
        is_image = self.rng.random() < 0.25
        fields = {"columns": {"price": seed}, "label": f"new{seed % 9}"}
        request = json_request("/items", {"vector": vector_of(seed).tolist(), **fields})
        if is_image:
            form = {"columns": json.dumps(fields["columns"]), "label": f"new{seed % 9}"}
            request = image_request("/items", self.rng.choice(self.photos), form)
        status, answer = await self._ask(connection, request)
        if status == 201:
            number = int(json.loads(answer)["ids"][0])
            self.added[number] = seed
            self.images |= {number} if is_image else set()

    async def _delete(self, connection: Connection) -> None:
        left = [number for number in self.added if number not in self.tried]
        if left:
            number = self.rng.choice(left)
            self.tried.add(number)
            status, _ = await self._ask(connection, json_request("/items", {"ids": [number]}, "DELETE"))
            if status == 200:
                self.deleted.add(number)

    async def report(self) -> None:
        """Print now and then how far it is."""
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            print(f"{self.sent:,} requests, {time.monotonic() - self.begin:.0f} s", flush=True)

    def check(self, folder: Path, num_kills: int) -> list[str]:
        """What is wrong with the index in the end."""
        index: Any = Index.load(folder)
        there = {*index.metadata.ids.tolist()}
        lost = sorted({*self.added} - self.tried - there)
        wrong = [f"{len(lost)} acknowledged items are lost: {lost[:5]}"] * bool(lost)
        wrong += [f"{len(self.deleted & there)} deleted items are there"] * bool(self.deleted & there)
        kept = sorted(({*self.added} - self.tried) & there)
        vectors = dict(zip(index.metadata.ids.tolist(), index.vectors(), strict=True))
        for number in (number for number in kept if number not in self.images):
            vector = vector_of(self.added[number])
            if not np.allclose(vectors[number], vector / np.linalg.norm(vector), atol=1e-5):
                wrong.append(f"item {number} has another vector")
        rows = index.lookup(kept)
        wrong += ["items have other columns"] * (rows["price"].tolist() != [self.added[number] for number in kept])
        return wrong + self._check_images(index, folder, num_kills)

    def _check_images(self, index: Index, folder: Path, num_kills: int) -> list[str]:
        """Every image that was added is there with its item; others are of requests that a kill cut off."""
        frame = index.metadata.frame
        paths = frame["path"].dropna().tolist() if "path" in frame else []
        named, files = {Path(path).name for path in paths}, {path.name for path in folder.glob("added/*")}
        kept = {*self.images} - self.tried
        wrong = [f"{len(named - files)} images are lost"] * bool(named - files)
        wrong += [f"{len(kept)} items were added with images, {len(named)} have one"] * (len(named) < len(kept))
        too_many = len(files - named) > num_kills * CLIENTS
        return wrong + [f"{len(files - named)} images belong to no item"] * too_many


def vector_of(seed: int) -> Any:
    """The vector of an added item."""
    return np.random.default_rng(seed).standard_normal(128).astype(np.float32)


def soak(folder: Path, total: int, num_kills: int) -> list[str]:
    """Send requests, print the numbers of answers, and return the errors."""
    model = make_model("test_resnet", 32)
    model.save_pretrained(folder / "model")
    make_index(folder / "index", SIZE, model)
    work, memory = Soak(), ""
    parts = [total * number // (num_kills + 1) for number in range(1, num_kills + 2)]
    wrong: list[str] = []
    for until in parts:
        with serving(folder / "index", "--model", str(folder / "model"), *LIMITS) as service:
            before = asyncio.run(_part(work, service, until, is_killed=until != parts[-1]))
            if until == parts[-1]:
                memory = f"{before[0]:.0f} to {service.megabytes:.0f} MB, {before[1]} to {service.num_files} open files"
                grown = service.megabytes > before[0] + MAX_GROWTH or service.num_files > before[1] + CLIENTS + 8
                wrong += [f"the process has grown: {memory}"] * grown
        wrong += [line.strip() for line in service.log if "Traceback" in line]
    wrong += work.check(folder / "index", num_kills)
    wrong += [f"{work.statuses[500]} answers are 500"] * bool(work.statuses[500])
    print({str(status): count for status, count in sorted(work.statuses.items(), key=str)})
    print(f"{len(work.added):,} added, {len(work.images):,} of them images; {len(work.deleted):,} deleted; "
          f"the last process: {memory}")  # fmt: skip
    return wrong


async def _part(work: Soak, service: Process, until: int, is_killed: bool) -> tuple[float, int]:
    """Send the requests of a part; the memory and the open files a little after its start."""
    begin = work.sent
    running, reporting = asyncio.create_task(work.run(service.address, until)), asyncio.create_task(work.report())
    while work.sent < begin + SECONDS_TO_WARM * (until - begin) and not running.done():
        await asyncio.sleep(0.05)
    facts = service.megabytes, service.num_files
    while is_killed and work.sent < until - CLIENTS and not running.done():
        await asyncio.sleep(0.002)
    if is_killed:
        service.process.kill()
    await running
    reporting.cancel()
    return facts
