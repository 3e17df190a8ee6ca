"""Middleware for every request: limits of size, time and number, metrics and the log."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vicinal.serving.limits import Limits
from vicinal.serving.problems import Problem, problem_response, too_busy
from vicinal.utils.console import printable

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
HUNG_UP = 499  # no answer was sent, as the client did not wait for it
MAX_PATH = 200
WITH_BODY = ("POST", "PUT", "PATCH", "DELETE")


class Metrics:
    """The numbers of a service, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels, registry = ["method", "route", "status"], self.registry
        self._requests = Counter("vicinal_requests", "Requests.", labels, registry=registry)
        self._seconds = Histogram("vicinal_request_seconds", "Seconds until the answer.", ["route"], registry=registry,
                                  buckets=SECONDS)  # fmt: skip
        self.batches = Histogram("vicinal_batch_size", "Requests per batch.", ["batch"], registry=registry,
                                 buckets=SIZES)  # fmt: skip

    def observe_request(self, route: str, method: str, status: int, seconds: float) -> None:
        method = method if method in ("GET", "HEAD", "POST", "DELETE", "OPTIONS") else "other"
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def add_gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Add a gauge that is computed when the metrics are requested."""
        Gauge(f"vicinal_{name}", text, registry=self.registry).set_function(value)


class Monitor:
    """Counts requests and, if asked, writes a line about each: no query, no token, no content."""

    def __init__(self, app: ASGIApp, metrics: Metrics, is_logged: bool = False) -> None:
        self.app, self.metrics, self.is_logged = app, metrics, is_logged

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), HUNG_UP

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_and_note)
        finally:
            seconds = time.perf_counter() - start
            route = getattr(scope.get("route"), "path", "other")  # of which there are few, unlike paths of requests
            self.metrics.observe_request(route, scope["method"], status, seconds)
            if self.is_logged:
                print(_line(scope, status, seconds), file=sys.stderr, flush=True)


def _line(scope: Any, status: int, seconds: float) -> str:
    client = (scope.get("client") or ("-",))[0]
    moment = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    path = printable(scope["path"][:MAX_PATH]).replace("\n", "\\n").replace("\t", "\\t")
    return f"{moment} {client} {printable(scope['method'][:16])} {path} {status} {1000 * seconds:.1f} ms"


@dataclass
class Load:
    """The present load: the number of requests with a body, and the bytes of their bodies so far."""

    requests: int = 0
    body_bytes: int = 0


class Guard:
    """Ends requests that are too many, too large or too slow, and those whose client has disconnected."""

    def __init__(self, app: ASGIApp, limits: Limits, load: Load) -> None:
        self.app, self.limits, self.load = app, limits, load

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_work = scope["type"] == "http" and (scope["method"] in WITH_BODY or scope["path"].endswith("/image"))
        if not is_work:
            await self.app(scope, receive, send)
            return
        request = _Request(self, scope, receive, send)
        try:
            self._check_room(scope)
        except Problem as problem:
            await problem.response()(scope, receive, send)
            return
        self.load.requests += 1
        try:
            await request.answer()
        finally:
            self.load.requests -= 1
            self.load.body_bytes -= request.size

    def _check_room(self, scope: Scope) -> None:
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if length.isdigit() and len(length) < 20:
            self.check_size(int(length))
        if self.load.requests >= self.limits.max_queue:
            raise too_busy(f"{self.load.requests} requests are in progress")

    def check_size(self, size: int) -> None:
        """Raise a Problem if the body of a request has more bytes than it may."""
        if size > self.limits.max_body:
            raise Problem(413, f"the body has more than {self.limits.max_body_mb:g} MB; send a smaller image")


class _Request:
    def __init__(self, guard: Guard, scope: Scope, receive: Receive, send: Send) -> None:
        self.guard, self.scope, self._receive, self._send = guard, scope, receive, send
        self.size = 0
        self._has_come, self._is_answered = asyncio.Event(), False

    async def answer(self) -> None:
        seconds = self.guard.limits.request_seconds
        work = asyncio.create_task(self._work())
        gone = asyncio.create_task(self._client_is_gone())
        try:
            done, _ = await asyncio.wait({work, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if work in done:
                work.result()
            elif not done and not self._is_answered:
                await _end(work)
                response = problem_response(504, f"the request took longer than {seconds:g} s")
                await response(self.scope, self._receive, self._send)
        finally:
            await _end(work)
            await _end(gone)

    async def _work(self) -> None:
        await self.guard.app(self.scope, self.receive, self.send)

    async def receive(self) -> Message:
        """The next part of the body; its bytes are counted as they come."""
        message = await self._receive()
        if message["type"] == "http.request":
            size = len(message.get("body", b""))
            self.size += size
            self.guard.load.body_bytes += size
            self.guard.check_size(self.size)
            if self.guard.load.body_bytes > self.guard.limits.max_queue_mb * 2**20:
                raise too_busy("the bodies of waiting requests are too large")
            if not message.get("more_body", False):
                self._has_come.set()
        return message

    async def send(self, message: Message) -> None:
        self._is_answered = True
        await self._send(message)

    async def _client_is_gone(self) -> None:
        """Wait until the client has disconnected, after its whole body came."""
        if self.scope["method"] in WITH_BODY:
            await self._has_come.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


async def _end(task: asyncio.Task[None]) -> None:
    if not task.done():
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task
