"""Running the service: it listens, says where, and ends the requests in flight before it stops."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from vicinal.serving.app import create_app
from vicinal.serving.security import Access
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
