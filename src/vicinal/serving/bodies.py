"""The bodies of requests: JSON, or a form with an image, read into the same values and checked in the same way."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema, model_validator
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException

from vicinal.serving.problems import Problem, invalid

MAX_ID = 2**63 - 1
PATTERN = r"^(0|[1-9][0-9]{0,18})$"
_DECIMAL = re.compile(PATTERN.replace("$", r"\Z"))
MAX_DIM = 65_536
MAX_TEXT = 4_096
MAX_FIELDS = 32
MAX_KEYS = 10_000  # colons of a JSON text; a column's text may hold some
MAX_SHORT = 2**16  # bytes of a body that is parsed at once, without a thread
SOURCES = ("image", "vector", "id", "url")
Number = Annotated[float, Field(allow_inf_nan=False)]
Vector = Annotated[list[Number], Field(max_length=MAX_DIM, fail_fast=True)]
Value = str | bool | int | Number | None
Method = Literal["contextual", "reciprocal", "query-expansion", "database-augmentation", "neighbor-average", "local"]
Body = TypeVar("Body", bound="_Body")


def read_id(value: Any) -> int:
    """The id that a request gives, as text or as an integer; raises ValueError if it cannot be one."""
    if isinstance(value, str) and _DECIMAL.match(value):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_ID:
        raise ValueError("an id is a whole number from 0 to 2**63 - 1, as decimal text or as an integer")
    return value


Id = Annotated[
    int,
    BeforeValidator(read_id),
    WithJsonSchema(
        {"anyOf": [{"type": "string", "pattern": PATTERN}, {"type": "integer", "minimum": 0, "maximum": MAX_ID}]}
    ),
]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True, frozen=True)


class _Input(_Body):
    """The input of a request: exactly one of several."""

    image: bytes | None = Field(None, description="an image file in base 64, or the file of a form")
    url: Annotated[str, Field(max_length=MAX_TEXT)] | None = Field(
        None, description="the address of an image, of a host that the service was told to allow"
    )
    box: Annotated[list[Number], Field(min_length=4, max_length=4)] | None = Field(
        None, description="the part of the image: left, top, width and height in pixels of the upright image"
    )

    @model_validator(mode="after")
    def _has_one_source(self) -> _Input:
        known = [name for name in SOURCES if name in type(self).model_fields]
        given = [name for name in known if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of {', '.join(known)}; {', '.join(given) or 'none'} given")
        if self.box is not None and given[0] in ("vector", "id"):
            raise ValueError(f"a box is a part of an image; leave it out with {given[0]}")
        return self


class EmbedBody(_Input):
    """The body of `POST /embed`."""


class SearchBody(_Input):
    """The body of `POST /search`."""

    vector: Vector | None = Field(None, description="an embedding")
    id: Id | None = Field(None, description="an item of the index")
    k: Annotated[int, Field(ge=1)] = Field(10, description="the number of matches; fewer if there are fewer")
    min_score: Number | None = Field(None, description="leave out matches with a lower score")
    min_probability: Annotated[Number, Field(ge=0, le=1)] | None = Field(
        None, description="leave out matches less likely than this to be right, by the calibration of the index"
    )
    filter: str | None = Field(
        None, description="find only items that match this condition, such as \"category == 'cup' and price < 20\""
    )
    group_by: Annotated[str, Field(max_length=MAX_TEXT)] | None = Field(
        None, description="a column; of the items with one value in it, only the best is found"
    )
    rerank: Method | None = Field(
        None,
        description="a re-ranking method; local needs an image or an item, and an index that stores local features",
    )
    exclude_id: Id | None = Field(None, description="an item to leave out, such as the query itself")

    def options(self) -> SearchBody:
        """The request without its image, vector or item; it is hashable, and equal ones are searched together."""
        return self.model_copy(update=dict.fromkeys((*SOURCES, "box")))


class ItemBody(_Body):
    """The body of `POST /items`."""

    image: bytes | None = Field(None, description="an image file in base 64, or the file of a form")
    vector: Vector | None = Field(None, description="an embedding")
    columns: dict[str, Value] = Field(default_factory=dict, description="values of the index's columns, or of new ones")
    label: str | int | None = Field(None, description="the class")

    @model_validator(mode="after")
    def _has_one_source(self) -> ItemBody:
        if (self.image is None) == (self.vector is None):
            raise ValueError("give exactly one of image, vector")
        return self


class DeleteBody(_Body):
    """The body of `DELETE /items`."""

    ids: Annotated[list[Id], Field(fail_fast=True)] | None = Field(None, description="the items")
    filter: str | None = Field(None, description="a condition that the items match")

    @model_validator(mode="after")
    def _has_one_choice(self) -> DeleteBody:
        if (self.ids is None) == (self.filter is None):
            raise ValueError("give exactly one of ids, filter")
        return self


async def read_body(request: Request, kind: type[Body], max_ids: int = 0) -> Body:
    """Read the body of a request; other requests are answered while a long one is parsed."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if media_type == "application/json":
            data = await request.body()
            _check_number_of_values(data, MAX_DIM + max_ids)
            is_short = len(data) <= MAX_SHORT
            return _parse_json(data, kind) if is_short else await asyncio.to_thread(_parse_json, data, kind)
        if media_type == "multipart/form-data" and kind is not DeleteBody:
            return kind.model_validate(await _form_values(request, kind))
    except ValidationError as error:
        raise invalid(error) from None
    except (UnicodeDecodeError, RecursionError):
        raise Problem(400, "the body is not JSON that can be read") from None
    kinds = "application/json" + ("" if kind is DeleteBody else " or multipart/form-data")
    raise Problem(415, f"the content type is {media_type[:80] or 'not given'}; use {kinds}")


def _check_number_of_values(data: bytes, at_most: int) -> None:
    """Limit the number of values in a JSON text, with which the time and memory of parsing it grow."""
    if data.count(b",") > at_most + MAX_KEYS or data.count(b":") > MAX_KEYS:
        raise Problem(422, f"the body has more than {at_most:,} values, or {MAX_KEYS:,} keys")


def _parse_json(data: bytes, kind: type[Body]) -> Body:
    body = kind.model_validate_json(data, strict=True)
    encoded = getattr(body, "image", None)
    if encoded is not None:
        try:
            body = body.model_copy(update={"image": base64.b64decode(encoded, validate=True)})
        except ValueError:
            raise Problem(422, "image: it is not base 64; send the bytes of an image file, encoded") from None
    return body


async def _form_values(request: Request, kind: type[_Body]) -> dict[str, Any]:
    """The fields of a form; lists and mappings are parsed as JSON."""
    try:
        async with request.form(max_files=1, max_fields=MAX_FIELDS, max_part_size=2**20) as form:
            values: dict[str, Any] = {}
            for name, value in form.multi_items():
                if name in values:
                    raise Problem(422, f"{name[:80]}: it is given twice")
                values[name] = await value.read() if isinstance(value, UploadFile) else value
    except HTTPException as error:
        raise Problem(400, f"the form cannot be read: {error.detail}") from None
    except (UnicodeDecodeError, LookupError, ValueError, KeyError) as error:
        raise Problem(400, "the form cannot be read") from error
    if isinstance(values.get("image"), str):
        raise Problem(422, "image: it is text; send it as a file")
    wrong = [name for name, value in values.items() if isinstance(value, bytes) and name != "image"]
    if wrong:
        raise Problem(422, f"{wrong[0][:80]}: it is a file; send it as text")
    return {name: _parse_field(name, value, kind) for name, value in values.items() if value != ""}


def _parse_field(name: str, value: Any, kind: type[_Body]) -> Any:
    """The value of a form's field: lists and mappings are JSON."""
    if name not in ("box", "vector", "columns") or not isinstance(value, str) or name not in kind.model_fields:
        return value
    _check_number_of_values(value.encode(errors="replace"), MAX_DIM)
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        raise Problem(422, f"{name}: it is not JSON") from None
    if not isinstance(parsed, list | Mapping):
        raise Problem(422, f"{name}: it must be a JSON {'object' if name == 'columns' else 'list'}")
    return parsed
