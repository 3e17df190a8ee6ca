"""Requests to a service: with its token, again while it is busy, and its errors as exceptions."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from vicinal.utils.errors import InputError, one_line
from vicinal.utils.extras import import_extra

if TYPE_CHECKING:
    import httpx

BUSY = (429, 503)
MAX_WAIT = 60.0  # seconds before the next try


class Connection:
    """Connections to one service, which threads may share.

    Args:
        url: its address, such as `http://127.0.0.1:8000`.
        token: what it asks for; None: nothing.
        timeout: seconds that one request may take.
        num_retries: how often a request is repeated while the service is busy.
        transport: of httpx, in place of the network.

    Raises:
        InputError: the address is none, or httpx is not installed.
    """

    def __init__(
        self, url: str, token: str | None, timeout: float, num_retries: int, transport: httpx.BaseTransport | None
    ) -> None:
        self._httpx = import_extra("httpx", "serve", "vicinal.Client")
        if not url.startswith(("http://", "https://")):
            raise InputError(f"{url}: no address of a service; give one such as http://127.0.0.1:8000")
        self.url, self._num_retries = url.rstrip("/"), num_retries
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._client: httpx.Client = self._httpx.Client(headers=headers, timeout=timeout, transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._client.close()

    def request(self, method: str, path: str, **content: Any) -> Any:
        """Send a request, and return the JSON of its answer.

        Args:
            method: of HTTP.
            path: of the endpoint.
            content: of the request, as `httpx.Client.request` takes it.

        Raises:
            InputError: the service refuses the request; the message is its reason.
            OSError: the service cannot be reached, is busy after all tries, or has failed.
        """
        for left in reversed(range(self._num_retries + 1)):
            response = self._send(method, path, content)
            if response.is_success:
                return self._json(response)
            if response.status_code not in BUSY or not left:
                break
            time.sleep(_seconds_to_wait(response))
        message = f"{self.url}: {self._detail(response)}"
        is_refused = response.is_client_error and response.status_code not in BUSY
        raise InputError(message) if is_refused else OSError(message)

    def _send(self, method: str, path: str, content: dict[str, Any]) -> httpx.Response:
        try:
            return self._client.request(method, f"{self.url}/{path}", **content)
        except self._httpx.TimeoutException:
            raise TimeoutError(f"{self.url}: no answer within {self._client.timeout.read:g} seconds") from None
        except (self._httpx.TransportError, self._httpx.InvalidURL) as error:
            raise ConnectionError(f"{self.url}: {one_line(error)}") from None

    def _json(self, response: httpx.Response) -> Any:
        try:
            return response.json()
        except ValueError:
            raise OSError(f"{self.url}: the answer is not JSON; is this a service of vicinal serve?") from None

    def _detail(self, response: httpx.Response) -> str:
        """The reason of an error, from its problem details (RFC 9457)."""
        try:
            detail = response.json()["detail"]
        except (ValueError, KeyError, TypeError):
            detail = f"{response.reason_phrase or 'an error'} (HTTP {response.status_code})"
        return one_line(str(detail))


def _seconds_to_wait(response: httpx.Response) -> float:
    """What the service asks for; a date is not read."""
    text = response.headers.get("Retry-After", "1").strip()
    return min(float(text), MAX_WAIT) if text.isascii() and text.isdecimal() else 1.0
