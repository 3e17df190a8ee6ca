"""What a client exchanges with a service: images, vectors and columns as it takes them, its answers as results."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from typing_extensions import TypeIs

from vicinal.utils.errors import InputError, unreadable

if TYPE_CHECKING:
    from PIL import Image

    from vicinal.data.table import Table
    from vicinal.retrieval.neighbors import Neighbors
    from vicinal.retrieval.scores import Array
    from vicinal.retrieval.search import Record, SearchResult

    Images: TypeAlias = Table | Sequence[str | os.PathLike[str]] | Sequence[bytes] | Sequence[Image.Image]


@dataclass(frozen=True)
class Picture:
    """An image that is sent.

    Attributes:
        content: a path, the bytes of a file, or a PIL image.
        record: what is known of it, as a query of a :class:`~vicinal.retrieval.SearchResult`.
    """

    content: Any
    record: Record = field(default_factory=dict)

    @property
    def box(self) -> list[float] | None:
        """Left, top, width and height of the part that is meant; None: all."""
        if (box := self.record.get("box")) is None:
            return None
        left, top, right, bottom = box
        return [left, top, right - left, bottom - top]

    def file(self) -> tuple[str, bytes]:
        """The name of the file that is sent, and its bytes.

        Raises:
            InputError: it cannot be read.
        """
        if isinstance(self.content, bytes):
            return "image", self.content
        if hasattr(self.content, "save"):
            data = BytesIO()
            self.content.save(data, "PNG", compress_level=1)
            return "image.png", data.getvalue()
        try:
            return os.path.basename(self.content), Path(self.content).read_bytes()
        except OSError as error:
            raise unreadable(self.content, error) from None


def is_table(images: object) -> TypeIs[Table]:
    return hasattr(images, "frame")


def are_vectors(queries: Any) -> TypeIs[Array]:
    return hasattr(queries, "ndim")


def vector_rows(vectors: Any) -> list[list[float]]:
    """Vectors as lists, ready for JSON.

    Raises:
        InputError: they are no matrix of finite numbers.
    """
    values = np.asarray(vectors.detach().float().cpu() if hasattr(vectors, "detach") else vectors)
    if values.ndim != 2 or values.dtype.kind not in "fiu" or not np.isfinite(values).all():
        raise InputError(f"the vectors are {values.dtype} {list(values.shape)}; give finite numbers [n, dim]")
    rows: list[list[float]] = values.astype(np.float32).tolist()
    return rows


def pictures(images: Images) -> list[Picture]:
    """Images of any kind, ready to be sent.

    Raises:
        InputError: they are not images.
    """
    if is_table(images):
        from vicinal.retrieval.search import plain_records

        records = plain_records(images.frame)
        return [Picture(path, record) for path, record in zip(images.paths, records, strict=True)]
    if isinstance(images, str | bytes | os.PathLike) or hasattr(images, "save"):
        raise InputError("give a list of images, such as ['cup.jpg']")
    return [_picture(each) for each in images]


def _picture(image: Any) -> Picture:
    if isinstance(image, str | os.PathLike):
        return Picture(image, {"path": os.fspath(image)})
    if isinstance(image, bytes) or hasattr(image, "save"):
        return Picture(image)
    raise InputError(f"{type(image).__name__} is no image; give paths, the bytes of files, or PIL images")


def columns_of(table: Table) -> list[dict[str, Any]]:
    """The columns of each row, as the service takes them; it gives paths to images itself."""
    from vicinal.retrieval.search import plain_records

    return [{name: value for name, value in row.items() if name != "path"} for row in plain_records(table.frame)]


def form_fields(values: dict[str, Any]) -> dict[str, str]:
    """The fields of a form: texts as they are, other values as JSON."""
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}


def record_of(item: dict[str, Any]) -> Record:
    """An item of the service as a match of a :class:`~vicinal.retrieval.SearchResult`, without its score.

    Example:
        >>> record_of({"id": "3", "label": "cup", "columns": {"path": "cups/1.jpg", "price": 5}})
        {'id': 3, 'path': 'cups/1.jpg', 'label': 'cup', 'price': 5}
    """
    columns = item["columns"]
    first = {"id": int(item["id"]), "path": columns.get("path"), "label": item["label"]}
    return {name: value for name, value in first.items() if value is not None} | columns


def result_of(query: Record, answer: dict[str, Any]) -> SearchResult:
    """The answer to a query; decided where the service decides."""
    from vicinal.retrieval.decisions import DecidedResult, Decision
    from vicinal.retrieval.search import SearchResult

    matches = [record_of(match) | {"score": match["score"]} for match in answer["matches"]]
    if answer["is_match"] is None:
        return SearchResult(query, matches)
    best = answer["matches"][0] if matches else {"score": None, "probability": None}
    decision = Decision(answer["is_match"], answer.get("label"), best["score"], best["probability"])
    return DecidedResult(query, matches, decision)


def neighbors_of(answers: Sequence[dict[str, Any]], k: int) -> Neighbors:
    """The answers to vectors.

    Raises:
        InputError: a vector has fewer than k matches.
    """
    from vicinal.retrieval.neighbors import Neighbors

    neighbors = Neighbors.empty(len(answers), k)
    for row, answer in enumerate(answers):
        matches = answer["matches"]
        if len(matches) != k:
            raise InputError(f"k = {k} is impossible: there are {len(matches)} images to search among")
        neighbors.scores[row] = [match["score"] for match in matches]
        neighbors.ids[row] = [int(match["id"]) for match in matches]
    return neighbors
