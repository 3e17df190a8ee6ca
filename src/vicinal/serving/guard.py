"""The limits of each request: how many are worked on, how large their bodies are, how long they take, and who waits."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vicinal.serving.limits import Limits
from vicinal.serving.problems import Problem, problem_response, too_busy

WITH_BODY = ("POST", "PUT", "PATCH", "DELETE")


@dataclass
class Load:
    """What is worked on now: the number of requests with a body, and the bytes of the bodies that have come."""

    requests: int = 0
    body_bytes: int = 0


class Guard:
    """Ends requests that are too many, too large or too slow, and those whose client has hung up.

    Args:
        app: the application.
        limits: of the service.
        load: counts what is worked on.
    """

    def __init__(self, app: ASGIApp, limits: Limits, load: Load) -> None:
        self.app, self.limits, self.load = app, limits, load

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http" or not _is_work(scope):
            await self.app(scope, receive, send)
            return
        request = _Request(self, scope, receive, send)
        try:
            self._check_room(scope)
        except Problem as problem:
            await problem_response(problem.status, problem.detail, problem.headers)(scope, receive, send)
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
            raise too_busy(f"{self.load.requests} requests are being worked on")

    def check_size(self, size: int) -> None:
        """Raise a Problem if the body of a request has more bytes than it may."""
        if size > self.limits.max_body:
            raise Problem(413, f"the body has more than {self.limits.max_body_mb:g} MB; send a smaller image")


def _is_work(scope: Scope) -> bool:
    """Whether a request takes more than a moment: one with a body, or for a thumbnail."""
    return scope["method"] in WITH_BODY or scope["path"].endswith("/image")


class _Request:
    """A request with a body."""

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
                raise too_busy("the requests that wait have too large bodies")
            if not message.get("more_body", False):
                self._has_come.set()
        return message

    async def send(self, message: Message) -> None:
        self._is_answered = True
        await self._send(message)

    async def _client_is_gone(self) -> None:
        """Wait until the client has hung up, after its whole body came."""
        if self.scope["method"] in WITH_BODY:
            await self._has_come.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


async def _end(task: asyncio.Task[None]) -> None:
    if not task.done():
        task.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await task
