"""Bodies that are too large, requests that are too many or too slow, and clients that hang up."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse

from vicinal.serving.guard import Guard, Load
from vicinal.serving.limits import Limits
from vicinal.serving.problems import Problem, problem_response

pytestmark = pytest.mark.anyio
Handler = Callable[[Request], Awaitable[Any]]
LIMITS = Limits(max_body_mb=0.001, max_queue=2, max_queue_mb=0.0015, request_seconds=600)


class Client:
    """A client whose messages come one by one; it notes the answer."""

    def __init__(self, *parts: bytes, hangs_up: bool = False, is_complete: bool = True, **headers: str) -> None:
        self.parts, self.hangs_up, self.is_complete = list(parts), hangs_up, is_complete
        self.headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        self.status: int | None = None
        self.body = b""

    async def receive(self) -> Any:
        if self.parts:
            part = self.parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(self.parts) or not self.is_complete}
        if not self.hangs_up:
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        self.body += message.get("body", b"")


async def ask(guard: Guard, client: Client, path: str = "/search", method: str = "POST") -> Client:
    scope = {"type": "http", "method": method, "path": path, "headers": client.headers, "query_string": b""}
    await guard(scope, client.receive, client.send)
    return client


def guard_of(handler: Handler, limits: Limits = LIMITS) -> Guard:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            response = await handler(Request(scope, receive))
        except Problem as problem:
            response = problem_response(problem.status, problem.detail, problem.headers)
        await response(scope, receive, send)

    return Guard(app, limits, Load())


def endless(ended: list[str]) -> Handler:
    """Works until it is cancelled, which it notes."""

    async def work(request: Request) -> None:
        await request.body()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cancelled")

    return work


async def length(request: Request) -> JSONResponse:
    return JSONResponse(len(await request.body()))


async def test_bodies_are_counted_while_they_come() -> None:
    guard = guard_of(length)
    assert json.loads((await ask(guard, Client(b"x" * 500, b"x" * 500))).body) == 1000
    endless = Client(*[b"x" * 100] * 50)
    assert (await ask(guard, endless)).status == 413
    assert len(endless.parts) > 35  # the rest is not read
    for header in ("999999", "9" * 15):
        declared = Client(b"x", content_length=header)
        assert (await ask(guard, declared)).status == 413
        assert declared.parts  # nothing is read
    assert (await ask(guard, Client(b"x", content_length="-5"))).status == 200
    assert guard.load == Load()


async def test_too_many_requests_or_bytes_are_told_to_come_again() -> None:
    go = asyncio.Event()

    async def slow(request: Request) -> JSONResponse:
        await request.body()
        await go.wait()
        return JSONResponse(1)

    guard = guard_of(slow)
    first = asyncio.create_task(ask(guard, Client(b"x" * 900)))
    await asyncio.sleep(0.01)
    assert (await ask(guard, Client(b"x" * 900))).status == 429  # too many bytes
    second = asyncio.create_task(ask(guard, Client(b"x")))
    await asyncio.sleep(0.01)
    refused = Client(b"x")
    assert (await ask(guard, refused)).status == 429
    assert refused.parts
    assert (await ask(guard, Client(), path="/items/3/image", method="GET")).status == 429
    health = asyncio.create_task(ask(guard, Client(b""), path="/health", method="GET"))
    go.set()
    assert [each.status for each in await asyncio.gather(first, second, health)] == [200] * 3
    assert guard.load == Load()


async def test_a_slow_request_ends() -> None:
    ended: list[str] = []
    guard = guard_of(endless(ended), replace(LIMITS, request_seconds=0.15))
    client = await ask(guard, Client(b"x"))
    assert (client.status, ended) == (504, ["cancelled"])
    assert json.loads(client.body)["detail"] == "the request took longer than 0.15 s"
    trickle = Client(b"x", is_complete=False)  # the rest of the body never comes
    assert (await ask(guard, trickle)).status == 504
    assert guard.load == Load()


async def test_who_hangs_up_is_not_worked_for() -> None:
    ended: list[str] = []
    guard = guard_of(endless(ended))
    client = await asyncio.wait_for(ask(guard, Client(b"x", hangs_up=True)), 60)
    assert (client.status, ended) == (None, ["cancelled"])
    picture = Client(b"", hangs_up=True)
    await asyncio.wait_for(ask(guard, picture, path="/items/3/image", method="GET"), 60)
    assert guard.load == Load()
