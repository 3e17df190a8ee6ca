"""The application around a service, and the server that runs it until a signal stops it."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from vicinal import __version__
from vicinal.serving.guard import Guard, Monitor
from vicinal.serving.page import router as page_router
from vicinal.serving.problems import Defects, add_problem_handlers
from vicinal.serving.routes import router
from vicinal.serving.security import Access, Security
from vicinal.serving.service import Service
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

BACKLOG = 1024
MAX_HEADERS = 32 * 2**10  # bytes
KEEP_ALIVE = 30  # seconds that a connection without requests is kept


class _Server(uvicorn.Server):
    """A server that says where it listens, and that a signal stops without an error."""

    def __init__(self, config: uvicorn.Config, service: Service, address: str) -> None:
        super().__init__(config)
        self._service, self._address = service, address

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            log(f"serving {self._service.store.place} at {self._address}")

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        old = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: Any) -> None:
        self._service.is_stopping = True
        super().handle_exit(sig, frame)


def run(service: Service, host: str, port: int, access: Access, is_logged: bool = True) -> None:
    """Serve until a signal stops it; SIGTERM and Ctrl-C let the requests in flight end, and the index is saved.

    Args:
        service: what answers; it is opened here.
        host: the address to listen at.
        port: the port; 0 takes a free one.
        access: who may ask.
        is_logged: whether a line about each request is written to stderr.

    Raises:
        InputError: the address cannot be used.
    """
    with _listening(host, port) as listener, service:
        config = uvicorn.Config(
            create_app(service, access, is_logged),
            access_log=False,
            log_config=None,
            server_header=False,
            lifespan="on",
            http="h11",  # which limits the size of headers
            ws="none",
            proxy_headers=False,
            backlog=BACKLOG,
            h11_max_incomplete_event_size=MAX_HEADERS,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=int(service.limits.request_seconds) + 1,
        )
        name = f"[{host}]" if ":" in host else host
        _Server(config, service, f"http://{name}:{listener.getsockname()[1]}").run([listener])


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that nobody else listens at."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        raise InputError(f"--host {host}: there is no such address") from None
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            raise InputError(
                f"cannot listen at {host}, port {port}: {(error.strerror or str(error)).lower()}"
            ) from None
        yield listener


def create_app(service: Service, access: Access | None = None, is_logged: bool = False) -> FastAPI:
    """Create the ASGI application of a service.

    Args:
        service: what answers.
        access: who may ask; None: everyone, for tests and for applications that see to it themselves.
        is_logged: whether a line about each request is written to stderr.
    """
    access = access or Access()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = FastAPI(title="Vicinal", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.service = service
    add_problem_handlers(app)
    app.include_router(router)
    app.include_router(page_router)
    # the last one is the first to see a request
    app.add_middleware(Guard, limits=service.limits, load=service.load)
    app.add_middleware(Defects)
    app.add_middleware(Security, access=access)
    if access.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(access.origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key"],
        )
    app.add_middleware(Monitor, metrics=service.metrics, is_logged=is_logged)
    return app
