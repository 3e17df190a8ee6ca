"""A client of the service: an index that another machine holds, with the methods of an index."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.errors import InputError, import_extra, one_line, unreadable

if TYPE_CHECKING:
    import httpx
    import pandas as pd
    from PIL import Image

    from vicinal.data.table import Table
    from vicinal.retrieval.neighbors import Neighbors
    from vicinal.retrieval.scores import Array
    from vicinal.retrieval.search import Record, SearchResult

    Images: TypeAlias = Table | Sequence[str | os.PathLike[str]] | Sequence[bytes] | Sequence[Image.Image]

Item = TypeVar("Item")
NUM_THREADS = 8  # requests at a time, which the service works on together
BUSY = (429, 503)
MAX_WAIT = 60.0  # seconds before the next try


class Client:
    """A service of `vicinal serve`, used as an :class:`~vicinal.retrieval.Index` is; threads may share it.

    Images are paths, the bytes of files, PIL images, or a table. They are sent several at a time, which the service
    embeds together. Every method raises an InputError if the service refuses what is asked, with its reason, and an
    OSError if it cannot be reached, has failed, or is busy after all retries.

    Args:
        url: the address of the service, such as `http://127.0.0.1:8000`.
        token: what the service asks for; None: nothing.
        timeout: seconds that one request may take.
        num_retries: how often a request is repeated while the service is busy, after the time that it asks for.
        transport: of httpx, in place of the network.

    Raises:
        InputError: `url` is not an address, or httpx is not installed (`pip install 'vicinal[serve]'`).

    Example:
        >>> import httpx
        >>> match = {"id": "3", "score": 0.9, "probability": None, "label": "cup", "columns": {"price": 5}}
        >>> answer = {"images": 7, "matches": [match], "is_match": None}
        >>> service = httpx.MockTransport(lambda request: httpx.Response(200, json=answer))
        >>> with Client("http://127.0.0.1:8000", transport=service) as client:
        ...     print(len(client), client.search(np.ones((1, 4)), k=1).ids)
        ...     print(client.search([b"the bytes of a file"], k=1)[0].matches)
        7 [[3]]
        [{'id': 3, 'label': 'cup', 'price': 5, 'score': 0.9}]
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        timeout: float = 60.0,
        num_retries: int = 5,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._httpx = import_extra("httpx", "serve", "vicinal.Client")
        if not url.startswith(("http://", "https://")):
            raise InputError(f"{url}: not the address of a service; give one such as http://127.0.0.1:8000")
        self.url, self._num_retries = url.rstrip("/"), num_retries
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._http: httpx.Client = self._httpx.Client(headers=headers, timeout=timeout, transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __len__(self) -> int:
        return int(self.info()["images"])

    def info(self) -> dict[str, Any]:
        """Return the images, model, calibration, columns and limits of the service."""
        answer: dict[str, Any] = self._request("GET", "info")
        return answer

    @overload
    def search(self, queries: Array, k: int = 10, *, where: str | None = None) -> Neighbors: ...
    @overload
    def search(
        self, queries: Images, k: int = 10, *, where: str | None = None, **options: str | float
    ) -> list[SearchResult]: ...
    def search(
        self, queries: Array | Images, k: int = 10, *, where: str | None = None, **options: str | float
    ) -> Neighbors | list[SearchResult]:
        """Find the k nearest images of each query.

        Args:
            queries: vectors, float `[q, dim]`, as for :meth:`Index.search <vicinal.retrieval.Index.search>`; or q
                images, as for :func:`~vicinal.retrieval.search_images`.
            k: number of matches per query; images may have fewer, with an option below.
            where: only images whose columns fulfill this condition are found, such as `price < 20`.
            options: for images: `group_by`, a column, of whose values only the best image each is found; `rerank`, the
                name of a re-ranking method, such as `contextual`; `min_score` and `min_probability` of a match.

        Returns:
            For vectors, scores and ids; for images, one result per query with the columns of its matches, and with a
            decision (:class:`~vicinal.retrieval.DecidedResult`) where the service is calibrated or a minimum is given.
        """
        fields = {"k": k, **options} | ({} if where is None else {"filter": where})
        if not hasattr(queries, "ndim"):
            sent = _images(queries)
            answers = _in_parallel(lambda image: self._post("search", **_form(image, fields)), sent)
            return [_result(record, answer) for (_, record), answer in zip(sent, answers, strict=True)]
        if options:
            raise InputError(f"{', '.join(options)}: for images only, not for vectors")
        rows = _vector_rows(queries)
        return _neighbors(_in_parallel(lambda row: self._post("search", json={**fields, "vector": row}), rows), k)

    def embed(self, images: Images) -> Floats:
        """Compute the embeddings of images: float32 `[n, dim]`, unit vectors."""
        answers = _in_parallel(lambda image: self._post("embed", **_form(image, {})), _images(images))
        if not answers:
            raise InputError("there are no images to embed; give at least one")
        return np.array([answer["vector"] for answer in answers], np.float32)

    def add(self, images: Array | Images, table: Table | None = None) -> Integers:
        """Add vectors or images, which the service has stored when this returns, and return their ids, int64 `[n]`.

        A repeated request adds nothing twice. If one is refused, some of the others may have been added.

        Args:
            images: vectors, float `[n, dim]`, or n images; the service keeps the files of images itself.
            table: n rows, the columns of the new images, without their paths; by default those of a table of images.
        """
        sent: list[Any] = _vector_rows(images) if hasattr(images, "ndim") else _images(images)
        given = images if table is None else table
        records = _records(given) if hasattr(given, "frame") else [{}] * len(sent)
        if len(records) != len(sent):
            raise InputError(f"{len(sent)} images, but a table of {len(records)} rows; there must be one row per image")
        answers = _in_parallel(self._add, list(zip(sent, records, strict=True)))
        return np.array([int(each) for answer in answers for each in answer["ids"]], np.int64)

    def _add(self, item: tuple[Any, Record]) -> Any:
        """Add a vector or an image, under a key of its own by which the service recognizes a repeated request."""
        content, record = item
        fields = {"columns": {name: value for name, value in record.items() if name != "path"}}
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        if isinstance(content, list):
            return self._post("items", headers=headers, json={"vector": content, **fields})
        if "box" in content[1]:
            raise InputError("a row with a box is a part of an image, which the service does not keep; crop it first")
        return self._post("items", headers=headers, **_form(content, fields))

    def delete(self, ids: npt.ArrayLike | None = None, *, where: str | None = None) -> int:
        """Delete images, by their ids or by a condition, and return how many were deleted."""
        if (ids is None) == (where is None):
            raise InputError("give either ids or where")
        body = {"filter": where} if ids is None else {"ids": np.asarray(ids, np.int64).ravel().tolist()}
        return int(self._request("DELETE", "items", json=body)["deleted"])

    def lookup(self, ids: npt.ArrayLike) -> pd.DataFrame:
        """Return the rows of images: `id`, `path` and `label` where they are known, and the other columns."""
        import pandas as pd

        numbers = np.asarray(ids, np.int64).ravel().tolist()
        found = _in_parallel(lambda number: self._request("GET", f"items/{number}"), numbers)
        return pd.DataFrame([_record(each) for each in found], columns=None if found else ["id"])

    def _post(self, path: str, **content: Any) -> Any:
        return self._request("POST", path, **content)

    def _request(self, method: str, path: str, **content: Any) -> Any:
        """Send a request, again while the service is busy, and return the JSON of its answer."""
        for left in reversed(range(self._num_retries + 1)):
            response = self._send(method, path, content)
            if response.status_code not in BUSY or not left:
                break
            after = response.headers.get("Retry-After", "")
            time.sleep(min(float(after), MAX_WAIT) if after.isdecimal() else 1.0)
        wrong = f"{response.reason_phrase or 'an error'} (HTTP {response.status_code})"
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if response.is_success and answer is not None:
            return answer
        if response.is_success:
            wrong = "the answer is not JSON; is this a service of vicinal serve?"
        elif isinstance(answer, dict):
            wrong = one_line(str(answer.get("detail", wrong)))  # the reason, of problem details (RFC 9457)
        is_refused = response.is_client_error and response.status_code not in BUSY
        raise (InputError if is_refused else OSError)(f"{self.url}: {wrong}")

    def _send(self, method: str, path: str, content: dict[str, Any]) -> httpx.Response:
        try:
            return self._http.request(method, f"{self.url}/{path}", **content)
        except self._httpx.TimeoutException:
            raise TimeoutError(f"{self.url}: no answer within {self._http.timeout.read:g} seconds") from None
        except (self._httpx.TransportError, self._httpx.InvalidURL) as error:
            raise ConnectionError(f"{self.url}: {one_line(error)}") from None


def _in_parallel(send: Callable[[Item], Any], items: Sequence[Item]) -> list[Any]:
    """Send one request per item, several at a time; after an error no others are begun."""
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        return list(pool.map(send, items))


def _vector_rows(vectors: Any) -> list[list[float]]:
    """Vectors as lists, ready for JSON."""
    values = np.asarray(vectors.detach().float().cpu() if hasattr(vectors, "detach") else vectors)
    if values.ndim != 2 or values.dtype.kind not in "fiu" or not np.isfinite(values).all():
        raise InputError(f"the vectors are {values.dtype} {list(values.shape)}; give finite numbers [n, dim]")
    rows: list[list[float]] = values.astype(np.float32).tolist()
    return rows


def _records(table: Any) -> list[Record]:
    from vicinal.retrieval.search import plain_records

    return plain_records(table.frame)


def _images(images: Any) -> list[tuple[Any, Record]]:
    """Each image, with what is known of it as a query of a :class:`~vicinal.retrieval.SearchResult`."""
    if hasattr(images, "frame"):
        return list(zip(images.paths, _records(images), strict=True))
    if isinstance(images, str | bytes | os.PathLike) or hasattr(images, "save"):
        raise InputError("give a list of images, such as ['cup.jpg']")
    return [(each, {"path": os.fspath(each)} if isinstance(each, str | os.PathLike) else {}) for each in images]


def _form(image: tuple[Any, Record], fields: dict[str, Any]) -> dict[str, Any]:
    """An image and further fields as a form: texts as they are, other values as JSON."""
    content, record = image
    if "box" in record:
        left, top, right, bottom = record["box"]
        fields = {**fields, "box": [left, top, right - left, bottom - top]}
    data = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
    return {"files": {"image": _file(content)}, "data": data}


def _file(image: Any) -> tuple[str, bytes]:
    """The name of the file that is sent, and its bytes."""
    if isinstance(image, bytes):
        return "image", image
    if hasattr(image, "save"):
        data = BytesIO()
        image.save(data, "PNG", compress_level=1)
        return "image.png", data.getvalue()
    if not isinstance(image, str | os.PathLike):
        raise InputError(f"{type(image).__name__} is not an image; give paths, the bytes of files, or PIL images")
    try:
        return os.path.basename(image), Path(image).read_bytes()
    except OSError as error:
        raise unreadable(os.fspath(image), error) from None


def _record(item: dict[str, Any]) -> Record:
    """An item of the service as a match of a :class:`~vicinal.retrieval.SearchResult`, without its score."""
    first = {"id": int(item["id"]), "path": item["columns"].get("path"), "label": item["label"]}
    return {name: value for name, value in first.items() if value is not None} | item["columns"]


def _result(query: Record, answer: dict[str, Any]) -> SearchResult:
    """The answer to a query; decided where the service decides."""
    from vicinal.retrieval.decisions import DecidedResult, Decision
    from vicinal.retrieval.search import SearchResult

    matches = [_record(match) | {"score": match["score"]} for match in answer["matches"]]
    if answer["is_match"] is None:
        return SearchResult(query, matches)
    best = answer["matches"][0] if matches else {"score": None, "probability": None}
    decision = Decision(answer["is_match"], answer.get("label"), best["score"], best["probability"])
    return DecidedResult(query, matches, decision)


def _neighbors(answers: list[Any], k: int) -> Neighbors:
    """The answers to vectors, each of which must have k matches."""
    from vicinal.retrieval.neighbors import Neighbors

    neighbors = Neighbors.empty(len(answers), k)
    for row, matches in enumerate(answer["matches"] for answer in answers):
        if len(matches) != k:
            raise InputError(f"k = {k} exceeds the {len(matches)} images to search among")
        neighbors.scores[row] = [match["score"] for match in matches]
        neighbors.ids[row] = [int(match["id"]) for match in matches]
    return neighbors
