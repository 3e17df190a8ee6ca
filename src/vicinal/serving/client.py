"""A client of the service: an index that another machine holds, with the methods of an index."""

from __future__ import annotations

import json
import os
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.errors import InputError, import_extra, one_line

if TYPE_CHECKING:
    import pandas as pd

    from vicinal.data.table import Table
    from vicinal.retrieval.search import SearchResult

NUM_THREADS, BUSY, MAX_WAIT = 8, (429, 503), 60.0  # requests at a time, statuses, seconds before the next try


class Client(AbstractContextManager["Client"]):
    """A service of `vicinal serve`, used as an :class:`~vicinal.retrieval.Index` is; threads may share it.

    Images are paths or the bytes of files. Every method raises an InputError if the service refuses a request, with
    its reason, and an OSError if it cannot be reached, fails, or is busy after all retries.

    Args:
        url: the address of the service, such as `http://127.0.0.1:8000`.
        token: the token of the service, if it has one.
        timeout: seconds that one request may take.
        num_retries: how often a request is repeated while the service is busy, after the time that it asks for.
        transport: of httpx, in place of the network.

    Raises:
        InputError: `url` is not an address, or httpx is not installed (`pip install 'vicinal[serve]'`).

    Example:
        >>> import httpx
        >>> transport = httpx.MockTransport(lambda request: httpx.Response(200, json={"images": 7}))
        >>> len(Client("http://127.0.0.1:8000", transport=transport))
        7
    """

    def __init__(
        self, url: str, token: str | None = None, *, timeout: float = 60.0, num_retries: int = 5, transport: Any = None
    ) -> None:
        httpx = import_extra("httpx", "serve", "vicinal.Client")
        if not url.startswith(("http://", "https://")):
            raise InputError(f"{url}: not the address of a service; give one such as http://127.0.0.1:8000")
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        try:
            self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout, transport=transport)
        except httpx.InvalidURL as error:
            raise InputError(f"{url}: not the address of a service: {one_line(error)}") from None
        self.url, self._num_retries, self._error = url, num_retries, httpx.TransportError

    def __exit__(self, *error: object) -> None:
        self._http.close()

    def __len__(self) -> int:
        return int(self.info()["images"])

    def info(self) -> dict[str, Any]:
        """Return the number of images, model, calibration, columns and limits of the service."""
        return dict(self._request("GET", "info"))

    def search(self, queries: Any, k: int = 10, *, where: str | None = None, **options: Any) -> list[SearchResult]:
        """Find the k nearest images of each query; the result of a calibrated service has a decision.

        Args:
            queries: vectors, float `[q, dim]`; or q images.
            k: number of matches per query.
            where: only images whose columns fulfill this condition are found, such as `price < 20`.
            options: `group_by`, `rerank`, `min_score` and `min_probability` of `POST /search`.
        """
        from vicinal.retrieval.search import Decision, SearchResult

        fields, results = {"k": k, **options, **({} if where is None else {"filter": where})}, []
        for query, answer in zip(queries, self._post("search", queries, [fields] * len(queries)), strict=True):
            record = {"path": os.fspath(query)} if isinstance(query, str | os.PathLike) else {}
            matches = [_record(match) | _scored(match) for match in answer["matches"]]
            best = answer["matches"][0] if matches else {"score": None, "probability": None}
            decision = Decision(answer["is_match"], answer.get("label"), best["score"], best["probability"])
            results.append(SearchResult(record, matches, None if answer["is_match"] is None else decision))
        return results

    def embed(self, images: Any) -> Floats:
        """Compute the embeddings of images: float32 `[n, dim]`, unit vectors."""
        return np.array([answer["vector"] for answer in self._post("embed", images, [{}] * len(images))], np.float32)

    def add(self, images: Any, table: Table | None = None) -> Integers:
        """Add vectors or images, which the service has stored when this returns, and return their ids, int64 `[n]`.

        A repeated request adds nothing twice. If one is refused, some of the others may have been added.

        Args:
            images: vectors, float `[n, dim]`, or n images; the service keeps the files of images itself.
            table: n rows, the columns of the new images; its paths stay here.
        """
        from vicinal.retrieval.search import plain_records

        records: list[dict[str, Any]] = [{} for _ in images] if table is None else plain_records(table.frame)
        if len(records) != len(images):
            raise InputError(f"{len(images)} images, but a table of {len(records)} rows; give one row per image")
        columns = [{"columns": {name: each[name] for name in each if name != "path"}} for each in records]
        return np.array([int(answer["ids"][0]) for answer in self._post("items", images, columns)], np.int64)

    def delete(self, ids: npt.ArrayLike | None = None, *, where: str | None = None) -> int:
        """Delete images, by their ids or by a condition, and return how many were deleted."""
        body = {"filter": where, "ids": None if ids is None else np.asarray(ids, np.int64).ravel().tolist()}
        return int(self._request("DELETE", "items", json=body)["deleted"])

    def lookup(self, ids: npt.ArrayLike) -> pd.DataFrame:
        """Return the rows of images: `id`, `path` and `label` where they are known, and the other columns."""
        import pandas as pd

        numbers = np.asarray(ids, np.int64).ravel().tolist()
        return pd.DataFrame([_record(self._request("GET", f"items/{number}")) for number in numbers])

    def _post(self, path: str, images: Any, fields: list[dict[str, Any]]) -> list[Any]:
        """Send one request per image, several at a time; after an error no others are begun."""
        if isinstance(images, str | bytes | os.PathLike):
            raise InputError("give a list of images, such as ['cup.jpg']")
        with ThreadPoolExecutor(NUM_THREADS) as pool:
            return list(pool.map(lambda *content: self._request("POST", path, **_body(*content)), images, fields))

    def _request(self, method: str, path: str, **content: Any) -> Any:
        """Send a request, again while the service is busy, and return the JSON of its answer."""
        for left in reversed(range(self._num_retries + 1)):
            try:
                response = self._http.request(method, path, **content)
            except self._error as error:
                raise OSError(f"{self.url}: {one_line(error)}") from None
            if response.status_code not in BUSY or not left:
                break
            after = response.headers.get("Retry-After", "")
            time.sleep(min(float(after), MAX_WAIT) if after.isdecimal() else 1.0)
        try:
            answer = response.json()
        except ValueError:
            answer = {"detail": "the answer is not JSON; is this a service of vicinal serve?"}
        else:
            if response.is_success:
                return answer
        reason = answer.get("detail", "no reason") if isinstance(answer, dict) else "no reason"
        is_refused = response.is_client_error and response.status_code not in BUSY
        raise (InputError if is_refused else OSError)(f"{self.url}: {one_line(reason)} (HTTP {response.status_code})")


def _body(image: Any, fields: dict[str, Any]) -> dict[str, Any]:
    """The content of a request with a vector or an image; by its key the service recognizes a repeated one."""
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    if hasattr(image, "ndim"):
        vector = image.tolist()
        if np.asarray(vector).dtype.kind not in "fiu" or not np.isfinite(vector).all():
            raise InputError("a vector has NaN or infinity, or holds no numbers")
        return {"headers": headers, "json": {"vector": vector, **fields}}
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
    data = image if isinstance(image, bytes) else Path(image).read_bytes()
    return {"headers": headers, "data": texts, "files": {"image": data}}


def _record(item: dict[str, Any]) -> dict[str, Any]:
    return {"id": int(item["id"]), **({} if item["label"] is None else {"label": item["label"]}), **item["columns"]}


def _scored(match: dict[str, Any]) -> dict[str, Any]:
    """The score of a match, and after a re-ranking by local features the number of matching patches."""
    patches = {"matching_patches": len(match["patches"])} if "patches" in match else {}
    return {"score": match["score"], **patches}
