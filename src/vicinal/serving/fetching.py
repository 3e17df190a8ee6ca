"""Images at addresses on the web: fetched only from hosts that are allowed, by https, from public addresses."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from vicinal.serving.problems import Problem

SECONDS = 10.0
PORT = 443
Resolve = Callable[[str], Sequence[str]]


def addresses_of(host: str) -> list[str]:
    """The addresses of a host; none if its name is not known."""
    try:
        return sorted({str(each[4][0]) for each in socket.getaddrinfo(host, PORT, type=socket.SOCK_STREAM)})
    except (OSError, UnicodeError):
        return []


class Fetcher:
    """Fetches images from some hosts.

    The connection goes to an address that was checked, so that a name that is looked up again cannot lead elsewhere.

    Args:
        hosts: their names.
        max_bytes: of an image.
        resolve: finds the addresses of a host.
        transport: of httpx, for tests.

    Example:
        >>> Fetcher(["images.example"], 2**20).check("https://images.example/cup.jpg")
        'images.example'
    """

    def __init__(
        self, hosts: Sequence[str], max_bytes: int, resolve: Resolve = addresses_of, transport: Any = None
    ) -> None:
        self.hosts, self.max_bytes = {host.lower() for host in hosts}, max_bytes
        self._resolve, self._transport = resolve, transport

    def check(self, url: str) -> str:
        """Return the host of an address that may be fetched.

        Raises:
            Problem: it may not.
        """
        if not self.hosts:
            raise Problem(422, "url: this service fetches no addresses; send the image")
        try:
            parts = urlsplit(url)
            host, port = (parts.hostname or "").lower(), parts.port
        except ValueError:
            raise Problem(422, "url: it is no address") from None
        if parts.scheme != "https" or port not in (None, PORT) or parts.username or parts.password:
            raise Problem(422, "url: give an https address without port and password")
        if host not in self.hosts:
            raise Problem(422, f"url: images are fetched only from {', '.join(sorted(self.hosts))}")
        return host

    def public_address(self, host: str) -> str:
        """Return an address of a host, all of whose addresses are public.

        Raises:
            Problem: one is not, or there is none.
        """
        addresses = self._resolve(host)
        if not addresses or not all(_is_public(each) for each in addresses):
            raise Problem(422, f"url: {host} has no public address")
        return addresses[0]

    async def fetch(self, url: str) -> bytes:
        """Return the content of an address.

        Raises:
            Problem: it may not be fetched, or cannot be.
        """
        import asyncio

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
