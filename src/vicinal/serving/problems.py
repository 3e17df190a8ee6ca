"""Errors of the service: problem JSON (RFC 9457), in one line, without stack traces or paths."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from functools import partial
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
    """A request that is answered by an error: the HTTP status, and what is wrong and how to correct it."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, headers or {}

    def response(self) -> JSONResponse:
        """The answer to the request."""
        return problem_response(self.status, self.detail, self.headers)


def too_busy(detail: str) -> Problem:
    """The problem of a service that has no room for the request now."""
    return Problem(429, f"{detail}; try again in 1 s", {"Retry-After": "1"})


def invalid(error: ValidationError) -> Problem:
    """The problem of an invalid body: the first of its errors."""
    first = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(map(str, first["loc"]))
    status = 400 if first["type"] == "json_invalid" else 422
    return Problem(status, f"{where}: {first['msg']}" if where else first["msg"])


def problem_response(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """The answer to a request with an error."""
    shown = one_line(detail, MAX_DETAIL).encode("utf-8", "backslashreplace").decode()
    content = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": shown}
    return JSONResponse(content, status, headers, MEDIA_TYPE)


def add_problem_handlers(app: FastAPI) -> None:
    """Answer the errors of an application that are foreseen by problem JSON."""
    for kind, problem_of in PROBLEMS.items():
        app.add_exception_handler(kind, partial(_answer, problem_of))


async def _answer(problem_of: Callable[[Any, Any], Problem], request: Request, error: Exception) -> JSONResponse:
    return problem_of(error, request.app.state.service).response()


def _refused(error: Exception, service: Any) -> Problem:
    log(f"{service.store.place}: {one_line(error)}")
    return Problem(503, "the database of the index refuses this service now", {"Retry-After": "10"})


PROBLEMS: dict[type[Exception], Callable[[Any, Any], Problem]] = {
    Problem: lambda error, _: error,
    HTTPException: lambda error, _: Problem(error.status_code, str(error.detail), dict(error.headers or {})),
    InputError: lambda error, service: Problem(422, service.without_paths(str(error))),
    EngineUnavailableError: lambda *_: Problem(
        503, "the database of the index does not answer now", {"Retry-After": "2"}
    ),
    EngineRefusedError: _refused,
    ValidationError: lambda error, _: invalid(error),
    ClientDisconnect: lambda *_: Problem(400, "the body ended too early"),
}
"""Type of a foreseen error -> the problem of an error and a service."""


class Defects:
    """Answers by a 500 whatever was not foreseen, and prints it to stderr."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
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
            response = problem_response(500, "an internal error; see the log of the service")
            await response(scope, receive, send)
