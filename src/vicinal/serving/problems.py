"""Errors of the service: problem JSON (RFC 9457), in one line, without stack traces or paths."""

from __future__ import annotations

import sys
import traceback
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vicinal.utils.console import log
from vicinal.utils.errors import EngineRefusedError, EngineUnavailableError, InputError, one_line

MEDIA_TYPE = "application/problem+json"
MAX_DETAIL = 400


class Problem(Exception):  # noqa: N818 - the name of RFC 9457
    """A request that is answered by an error.

    Args:
        status: the HTTP status.
        detail: the error, and how to correct it.
        headers: further headers of the answer.
    """

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, headers or {}


def too_busy(detail: str, seconds: int = 1) -> Problem:
    """The problem of a service that has no room for the request now."""
    return Problem(429, f"{detail}; try again in {seconds} s", {"Retry-After": str(seconds)})


def invalid(error: ValidationError) -> Problem:
    """The problem of an invalid body: the first of its errors."""
    first = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(map(str, first["loc"]))
    status = 400 if first["type"] == "json_invalid" else 422
    return Problem(status, f"{where}: {first['msg']}" if where else first["msg"])


def problem_response(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """The answer to a request with an error.

    Example:
        >>> response = problem_response(404, "no item 7")
        >>> response.media_type, response.body[:43]
        ('application/problem+json', b'{"type":"about:blank","title":"Not Found","')
    """
    content = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": _shown(detail)}
    return JSONResponse(content, status, headers, MEDIA_TYPE)


def _shown(detail: str) -> str:
    """A detail in one line that can be written as UTF-8."""
    return one_line(detail, MAX_DETAIL).encode("utf-8", "backslashreplace").decode()


def add_problem_handlers(app: FastAPI) -> None:
    """Answer the errors of an application that are foreseen by problem JSON."""

    async def on_problem(_: Request, error: Any) -> JSONResponse:
        return problem_response(error.status, error.detail, error.headers)

    async def on_http(_: Request, error: Any) -> JSONResponse:
        return problem_response(error.status_code, str(error.detail), dict(error.headers or {}))

    async def on_input(request: Request, error: Any) -> JSONResponse:
        return problem_response(422, request.app.state.service.without_paths(str(error)))

    async def on_away(_: Request, error: Any) -> JSONResponse:
        return problem_response(503, "the database of the index does not answer now", {"Retry-After": "2"})

    async def on_refused(request: Request, error: Any) -> JSONResponse:
        log(f"{request.app.state.service.store.place}: {one_line(error)}")
        return problem_response(503, "the database of the index refuses this service now", {"Retry-After": "10"})

    async def on_invalid(request: Request, error: Any) -> JSONResponse:
        return await on_problem(request, invalid(error))

    async def on_hung_up(_: Request, error: Any) -> JSONResponse:
        return problem_response(400, "the body ended too early")

    handlers = {
        Problem: on_problem,
        HTTPException: on_http,
        InputError: on_input,
        EngineUnavailableError: on_away,
        EngineRefusedError: on_refused,
        ValidationError: on_invalid,
        ClientDisconnect: on_hung_up,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)


class Defects:
    """Answers by a 500 whatever was not foreseen, and prints it to stderr.

    Args:
        app: the application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        is_answered = False

        async def send_and_note(message: Message) -> None:
            nonlocal is_answered
            is_answered = True
            await send(message)

        try:
            await self.app(scope, receive, send_and_note)
        except Exception as error:
            if scope["type"] != "http" or is_answered:
                raise
            traceback.print_exception(error, file=sys.stderr)
            response = problem_response(500, "a defect of the service; its log says more")
            await response(scope, receive, send)
