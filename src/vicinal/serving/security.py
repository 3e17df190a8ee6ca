"""Access to the service, headers for browsers, and the hosts from which images are fetched."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vicinal.serving.problems import Problem, problem_response
from vicinal.utils.errors import InputError, unreadable

SECONDS = 10.0
PORT = 443
Resolve = Callable[[str], Sequence[str]]
OPEN = ("/", "/health", "/ready")  # without a token; so are the files of the page, which asks for one
OPEN_FOLDER = "/static/"
VARIABLE = "VICINAL_TOKEN"
MIN_TOKEN, MAX_TOKEN = 16, 4_096
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_ENCODED = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]


def addresses_of(host: str) -> list[str]:
    """The addresses of a host; none if its name is not known."""
    try:
        return sorted({str(each[4][0]) for each in socket.getaddrinfo(host, PORT, type=socket.SOCK_STREAM)})
    except (OSError, UnicodeError):
        return []


class Fetcher:
    """Fetches images from some hosts.

    The connection goes to an address that was checked, so that a name that is looked up again cannot lead elsewhere.
    """

    def __init__(
        self, hosts: Sequence[str], max_bytes: int, resolve: Resolve = addresses_of, transport: Any = None
    ) -> None:
        self.hosts, self.max_bytes = {host.lower() for host in hosts}, max_bytes
        self._resolve, self._transport = resolve, transport

    def check(self, url: str) -> str:
        """Return the host of an address that may be fetched; raises a Problem if it may not."""
        if not self.hosts:
            raise Problem(422, "url: this service fetches no addresses; send the image")
        try:
            parts = urlsplit(url)
            host, port = (parts.hostname or "").lower(), parts.port
        except ValueError:
            raise Problem(422, "url: it is not an address") from None
        if parts.scheme != "https" or port not in (None, PORT) or parts.username or parts.password:
            raise Problem(422, "url: give an https address without port and password")
        if host not in self.hosts:
            raise Problem(422, f"url: images are fetched only from {', '.join(sorted(self.hosts))}")
        return host

    def public_address(self, host: str) -> str:
        """Return an address of a host; raises a Problem unless it has some, and all are public."""
        addresses = self._resolve(host)
        if not addresses or not all(_is_public(each) for each in addresses):
            raise Problem(422, f"url: {host} has no public address")
        return addresses[0]

    async def fetch(self, url: str) -> bytes:
        """Return the content of an address; raises a Problem if it may not be fetched, or cannot be."""
        import httpx

        host = self.check(url)
        address = await asyncio.to_thread(self.public_address, host)
        data = bytearray()
        options: dict[str, Any] = {"headers": {"Host": host}, "extensions": {"sni_hostname": host}}
        try:
            target = httpx.URL(url).copy_with(host=address)
            async with (
                httpx.AsyncClient(timeout=SECONDS, trust_env=False, transport=self._transport) as client,
                client.stream("GET", target, **options) as response,
            ):
                if response.status_code != 200:
                    raise Problem(422, f"url: {host} answers with status {response.status_code}")
                async for block in response.aiter_bytes():
                    data += block
                    if len(data) > self.max_bytes:
                        raise Problem(422, f"url: the image has more than {self.max_bytes / 2**20:g} MB")
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError):
            raise Problem(422, f"url: it cannot be fetched from {host}") from None
        return bytes(data)


def _is_public(address: str) -> bool:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None) or parsed
    return mapped.is_global and not mapped.is_multicast


@dataclass(frozen=True)
class Access:
    """The rules of access to a service.

    Attributes:
        token: that requests must have; None: none.
        hosts: the names in the header Host that are accepted; None: all.
        origins: of other pages that may send requests by JavaScript, such as https://shop.example.

    Example:
        >>> access = Access(token="0123456789abcdef")
        >>> access.has_token("Bearer 0123456789abcdef"), access.has_token("Bearer 0123456789abcdeg")
        (True, False)
    """

    token: str | None = None
    hosts: tuple[str, ...] | None = None
    origins: tuple[str, ...] = ()

    def has_token(self, header: str) -> bool:
        """Whether the header Authorization has the token; how long that takes tells nothing about it."""
        if self.token is None:
            return True
        scheme, _, given = header.partition(" ")
        digests = (hashlib.sha256(text.strip().encode("utf-8", "replace")).digest() for text in (given, self.token))
        return hmac.compare_digest(*digests) and scheme.lower() == "bearer"

    def check(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        """Raise a Problem if a request may not be answered."""
        host = headers.get("host", "")
        if self.hosts is not None and host_name(host) not in self.hosts:
            raise Problem(400, f"Host: this service answers as {', '.join(self.hosts)} only")
        origin = headers.get("origin")
        if origin is not None and method not in ("GET", "HEAD") and not self._is_allowed(origin, host):
            raise Problem(403, "Origin: pages of this origin may not call this service; allow them by --cors_origin")
        is_open = path in OPEN or path.startswith(OPEN_FOLDER)
        if not is_open and not self.has_token(headers.get("authorization", "")):
            header = {"WWW-Authenticate": 'Bearer realm="vicinal"'}
            raise Problem(401, "give the token of this service: Authorization: Bearer TOKEN", header)

    def _is_allowed(self, origin: str, host: str) -> bool:
        return origin in self.origins or urlsplit(origin).netloc.lower() == host.lower() != ""


class Security:
    """Refuses requests that may not be answered, and adds security headers for browsers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name.lower() for name, _ in message["headers"]}
                missing = [(name, value) for name, value in _ENCODED if name not in given]
                message["headers"] = [*message["headers"], *missing]
            await send(message)

        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            self.access.check(scope["method"], scope["path"], headers)
        except Problem as problem:
            await problem.response()(scope, receive, send_with_headers)
        except ValueError:  # of an origin that is not an address
            await problem_response(400, "Origin: it is not an address")(scope, receive, send_with_headers)
        else:
            await self.app(scope, receive, send_with_headers)


def host_name(host: str) -> str:
    """The name in a header Host, without the port.

    Example:
        >>> host_name("LOCALHOST:8000"), host_name("[::1]:80"), host_name("127.0.0.1")
        ('localhost', '::1', '127.0.0.1')
    """
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.lower()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address.

    Example:
        >>> is_loopback("127.0.0.2"), is_loopback("localhost"), is_loopback("0.0.0.0")
        (True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def access_for(host: str, token: str | None, origins: tuple[str, ...] = ()) -> Access:
    """The rules of access to a service at an address."""
    for origin in origins:
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https") or origin != f"{parts.scheme}://{parts.netloc}":
            raise InputError(f"--cors_origin {origin}: give scheme and host alone, such as https://shop.example")
    if is_loopback(host):
        return Access(token, tuple(dict.fromkeys([*LOOPBACK_NAMES, host.lower()])), origins)
    if token is None:
        raise InputError(
            f"--host {host}: other machines can reach it, so it needs a token; give --token_file, or the "
            f"variable {VARIABLE}"
        )
    return Access(token, None, origins)


def read_token(file: str | None) -> str | None:
    """The token in a file, or in the environment; None without a token."""
    if file is None:
        token, place = os.environ.get(VARIABLE), VARIABLE
    else:
        try:
            token, place = Path(file).read_text("utf-8")[: MAX_TOKEN + 1].strip(), file
        except OSError as error:
            raise unreadable(file, error) from None
        except UnicodeDecodeError:
            raise InputError(f"{file}: a token is text") from None
    if token is not None and not (MIN_TOKEN <= len(token) <= MAX_TOKEN and token.isascii() and token.isprintable()):
        raise InputError(
            f"{place}: a token has {MIN_TOKEN} to {MAX_TOKEN:,} characters of ASCII; make one by: openssl rand -hex 32"
        )
    return token
