"""A client of the service: an index that another machine holds, with the methods of an index."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from vicinal.serving.client import exchange
from vicinal.serving.client.connection import Connection
from vicinal.serving.client.exchange import Picture, are_vectors, is_table, pictures, vector_rows
from vicinal.utils.arrays import Floats, Integers
from vicinal.utils.errors import InputError

if TYPE_CHECKING:
    import httpx
    import pandas as pd

    from vicinal.data.table import Table
    from vicinal.retrieval.neighbors import Neighbors
    from vicinal.retrieval.scores import Array
    from vicinal.retrieval.search import SearchResult
    from vicinal.serving.client.exchange import Images

Item = TypeVar("Item")
Result = TypeVar("Result")
NUM_THREADS = 8  # requests at a time, which the service works on together


class Client:
    """A service of `vicinal serve`, used as an :class:`~vicinal.retrieval.Index` is.

    Images are paths, the bytes of files, PIL images, or a table. They are sent several at a time, which the service
    embeds together. Threads may share a client. Every method raises an InputError if the service refuses what is asked,
    with its reason, and an OSError if it cannot be reached, has failed, or is busy after all retries.

    Args:
        url: the address of the service, such as `http://127.0.0.1:8000`.
        token: what the service asks for; None: nothing.
        timeout: seconds that one request may take.
        num_retries: how often a request is repeated while the service is busy, after the time that it asks for.
        transport: of httpx, in place of the network.

    Raises:
        InputError: the address is none, or httpx is not installed (`pip install 'vicinal[serve]'`).

    Attributes:
        metadata: what the service knows of its images, by `metadata.lookup(ids)`.

    Example:
        >>> import httpx
        >>> match = {"id": "3", "score": 0.9, "probability": None, "label": "cup", "columns": {"price": 5}}
        >>> answers = {
        ...     "/info": {"images": 7},
        ...     "/search": {"matches": [match], "is_match": None, "count": 1},
        ... }
        >>> service = httpx.MockTransport(lambda request: httpx.Response(200, json=answers[request.url.path]))
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
        self._connection = Connection(url, token, timeout, num_retries, transport)
        self.metadata = RemoteMetadata(self._connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._connection.__exit__(None, None, None)

    def __len__(self) -> int:
        return int(self.info()["images"])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._connection.url!r})"

    def info(self) -> dict[str, Any]:
        """Return what the service is: its images, model, calibration, columns and limits."""
        answer: dict[str, Any] = self._connection.request("GET", "info")
        return answer

    @overload
    def search(self, queries: Array, k: int = 10, *, where: str | None = None) -> Neighbors: ...
    @overload
    def search(
        self,
        queries: Images,
        k: int = 10,
        *,
        where: str | None = None,
        group_by: str | None = None,
        rerank: str | None = None,
        min_score: float | None = None,
        min_probability: float | None = None,
    ) -> list[SearchResult]: ...
    def search(
        self,
        queries: Array | Images,
        k: int = 10,
        *,
        where: str | None = None,
        group_by: str | None = None,
        rerank: str | None = None,
        min_score: float | None = None,
        min_probability: float | None = None,
    ) -> Neighbors | list[SearchResult]:
        """Find the k nearest images of each query.

        Args:
            queries: vectors, float `[q, dim]`, as for :meth:`Index.search <vicinal.retrieval.Index.search>`; or q
                images, as for :func:`~vicinal.retrieval.search_images`.
            k: number of matches per query; of an image there may be fewer, with an option below.
            where: only images whose columns fulfill this condition are found, such as `price < 20`.
            group_by: a column; of the images with one value in it, only the best is found. For images only, as all
                below.
            rerank: the name of a re-ranking method, such as `contextual`.
            min_score: the least score of a match.
            min_probability: the least probability of a match, from 0 to 1.

        Returns:
            Of vectors, scores and ids; of images, one result per query with the columns of its matches, and with a
            decision (:class:`~vicinal.retrieval.DecidedResult`) where the service is calibrated or a minimum is given.

        Raises:
            InputError: there are fewer than k images for a vector, or the service refuses a query.
        """
        of_images = {
            "group_by": group_by, "rerank": rerank, "min_score": min_score, "min_probability": min_probability,
        }  # fmt: skip
        given = {name: value for name, value in {"filter": where, **of_images}.items() if value is not None}
        fields = {"k": k, **given}
        if not are_vectors(queries):
            sent = pictures(queries)
            answers = _in_parallel(lambda picture: self._send("search", picture, fields), sent)
            return [exchange.result_of(each.record, answer) for each, answer in zip(sent, answers, strict=True)]
        if given.keys() & of_images.keys():
            raise InputError(f"{', '.join(given.keys() & of_images.keys())}: for images only, not for vectors")
        rows = vector_rows(queries)
        return exchange.neighbors_of(_in_parallel(lambda row: self._post("search", {**fields, "vector": row}), rows), k)

    def embed(self, images: Images) -> Floats:
        """Compute the embeddings of images.

        Returns:
            float32 `[n, dim]`, unit vectors.
        """
        answers = _in_parallel(lambda picture: self._send("embed", picture, {}), pictures(images))
        if not answers:
            raise InputError("there are no images to embed; give at least one")
        return np.array([answer["vector"] for answer in answers], np.float32)

    def add(self, images: Array | Images, table: Table | None = None) -> Integers:
        """Add vectors or images, which the service has stored when this returns, and return their ids, int64 `[n]`.

        A request that is repeated, because the service was busy, adds nothing twice. If one is refused, some of the
        others may have been added.

        Args:
            images: vectors, float `[n, dim]`, or n images; the service keeps the files of images itself.
            table: n rows, the columns of the new images; its paths are not sent. Of images that are a table, it is that
                table.

        Raises:
            InputError: there are not as many rows as images, or the service refuses one of them.
        """
        sent: Sequence[list[float] | Picture] = vector_rows(images) if are_vectors(images) else pictures(images)
        table = images if table is None and is_table(images) else table
        columns = [{}] * len(sent) if table is None else exchange.columns_of(table)
        if len(columns) != len(sent):
            raise InputError(f"{len(sent)} images, but a table of {len(columns)} rows; there must be one row per image")
        answers = _in_parallel(self._add, list(zip(sent, columns, strict=True)))
        return np.array([int(each) for answer in answers for each in answer["ids"]], np.int64)

    def _add(self, item: tuple[list[float] | Picture, dict[str, Any]]) -> Any:
        """Add one item, under a key of its own by which the service knows it again."""
        content, columns = item
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        if isinstance(content, list):
            return self._post("items", {"vector": content, "columns": columns}, headers=headers)
        if content.box is not None:
            raise InputError("a row with a box is a part of an image, which the service does not keep; crop it first")
        return self._send("items", content, {"columns": columns}, headers=headers)

    def delete(self, ids: npt.ArrayLike | None = None, *, where: str | None = None) -> int:
        """Delete images, by their ids or by a condition, and return how many were deleted.

        Raises:
            InputError: both or neither are given, or the service refuses.
        """
        if (ids is None) == (where is None):
            raise InputError("give either ids or where")
        body = {"filter": where} if ids is None else {"ids": np.asarray(ids, np.int64).ravel().tolist()}
        return int(self._connection.request("DELETE", "items", json=body)["deleted"])

    def _post(self, path: str, body: dict[str, Any], **content: Any) -> Any:
        return self._connection.request("POST", path, json=body, **content)

    def _send(self, path: str, picture: Picture, fields: dict[str, Any], **content: Any) -> Any:
        """Post an image as a form."""
        values = fields if picture.box is None else {**fields, "box": picture.box}
        content |= {"files": {"image": picture.file()}, "data": exchange.form_fields(values)}
        return self._connection.request("POST", path, **content)


class RemoteMetadata:
    """The metadata of a service's images; :class:`Client` has them as `metadata`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def lookup(self, ids: npt.ArrayLike) -> pd.DataFrame:
        """Return the rows of images: `id`, `path` and `label` where they are known, and the other columns.

        Raises:
            InputError: there is no image with one of the ids.
        """
        import pandas as pd

        numbers = np.asarray(ids, np.int64).ravel().tolist()
        found = _in_parallel(lambda number: self._connection.request("GET", f"items/{number}"), numbers)
        return pd.DataFrame([exchange.record_of(each) for each in found], columns=None if found else ["id"])


def _in_parallel(send: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Send one request per item, several at a time; after an error no others are begun."""
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        return list(pool.map(send, items))
