"""What the service says of itself: a line per request on stderr, and numbers for Prometheus."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vicinal.utils.console import printable

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
HUNG_UP = 499  # no answer was sent, as the client did not wait for it
MAX_PATH = 200


class Metrics:
    """The numbers of a service, in a registry of its own.

    Example:
        >>> metrics = Metrics()
        >>> metrics.observe_request("/search", "POST", 200, seconds=0.01)
        >>> 'vicinal_requests_total{method="POST",route="/search",status="200"} 1.0' in metrics.text().decode()
        True
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels, registry = ["method", "route", "status"], self.registry
        self._requests = Counter("vicinal_requests", "Requests.", labels, registry=registry)
        self._seconds = Histogram("vicinal_request_seconds", "Seconds until the answer.", ["route"], registry=registry,
                                  buckets=SECONDS)  # fmt: skip
        self._batches = Histogram("vicinal_batch_size", "Requests per batch.", ["batch"], registry=registry,
                                  buckets=SIZES)  # fmt: skip

    def observe_request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request."""
        method = method if method in ("GET", "HEAD", "POST", "DELETE", "OPTIONS") else "other"
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def batch_observer(self, name: str) -> Callable[[int], None]:
        """What is told the size of each batch of a kind."""
        return self._batches.labels(name).observe

    def add_gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Show a number that is asked for when the metrics are."""
        Gauge(f"vicinal_{name}", text, registry=self.registry).set_function(value)

    def text(self) -> bytes:
        """All numbers, in the text format of Prometheus."""
        return generate_latest(self.registry)


class Monitor:
    """Counts requests and, if asked, writes a line about each: no query, no token, no content.

    Args:
        app: the application.
        metrics: where they are counted.
        is_logged: whether a line is written.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, is_logged: bool = False) -> None:
        self.app, self.metrics, self.is_logged = app, metrics, is_logged

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
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
            self.metrics.observe_request(_route(scope), scope["method"], status, seconds)
            if self.is_logged:
                print(_line(scope, status, seconds), file=sys.stderr, flush=True)


def _route(scope: Any) -> str:
    """The path of the route, of which there are few, in place of that of the request."""
    return getattr(scope.get("route"), "path", "other")


def _line(scope: Any, status: int, seconds: float) -> str:
    client = (scope.get("client") or ("-",))[0]
    moment = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    path = printable(scope["path"][:MAX_PATH]).replace("\n", "\\n").replace("\t", "\\t")
    return f"{moment} {client} {printable(scope['method'][:16])} {path} {status} {1000 * seconds:.1f} ms"
