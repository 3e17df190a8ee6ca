"""What the description of the API (OpenAPI) says of bodies and answers, with examples."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from vicinal.serving.bodies import DeleteBody, EmbedBody, ItemBody, SearchBody
from vicinal.serving.problems import MEDIA_TYPE

IMAGE = "iVBORw0KGgo..."
VECTOR = [0.12, -0.5, 0.31]
EXAMPLES: dict[type[BaseModel], dict[str, Any]] = {
    SearchBody: {
        "image": {"image": IMAGE, "box": [10, 20, 200, 150], "k": 5},
        "vector": {"vector": VECTOR, "k": 5, "filter": "category == 'cup' and price < 20"},
        "item": {"id": "3", "exclude_id": "3", "group_by": "product"},
    },
    EmbedBody: {"image": {"image": IMAGE}},
    ItemBody: {
        "image": {"image": IMAGE, "label": "cup", "columns": {"price": 12.5}},
        "vector": {"vector": VECTOR, "columns": {"price": 12.5}},
    },
    DeleteBody: {"ids": {"ids": ["3", "17"]}, "filter": {"filter": "price > 100"}},
}
MATCH = {
    "id": "3", "score": 0.91, "probability": 0.98, "label": "cup", "columns": {"path": "cups/1.jpg", "price": 12.5}
}  # fmt: skip
DECISION = """`is_match` says whether there is a match at all, by the calibration of the index or by the minima of the
request; it is null, and there is no `label`, without either. `label` is then the class that most matches vote for, and
null if there is no match. A `probability` is null without a calibration."""
ANSWERS: dict[type[BaseModel], Any] = {
    SearchBody: {"matches": [MATCH], "is_match": True, "label": "cup", "count": 1},
    EmbedBody: {"vector": VECTOR, "dim": 3, "model": "8c1f0e6f2a7b9d34"},
    ItemBody: {"ids": ["1204"]},
    DeleteBody: {"deleted": 2},
}
PROBLEM = {"type": "about:blank", "title": "Unprocessable Content", "status": 422, "detail": "k: 9,999 is too large"}
PROBLEMS = {"description": "What is wrong", "content": {MEDIA_TYPE: {"example": PROBLEM}}}
ITEM = {name: MATCH[name] for name in ("id", "label", "columns")}
INFO = {
    "name": "gallery", "engine": "folder", "is_connected": True, "images": 1204, "dim": 512, "kind": "exact",
    "model": {"fingerprint": "8c1f0e6f2a7b9d34", "name": "run"}, "refiner": {"fingerprint": None},
    "calibration": {"score": "similarity", "threshold": 0.71},
    "columns": [{"name": "price", "type": "number", "values": None}], "limits": {"max_k": 1000},
    "can_write": True, "can_embed": True, "version": "0.1.0",
}  # fmt: skip
FORM_TEXT = ("box", "vector", "columns")  # which a form has as JSON


def described(body: type[BaseModel], status: int = 200) -> dict[str, Any]:
    """The arguments of a route that describe the body that it takes and what it answers.

    Example:
        >>> described(DeleteBody)["openapi_extra"]["requestBody"]["content"]["application/json"]["examples"]["ids"]
        {'value': {'ids': ['3', '17']}}
    """
    schema = body.model_json_schema(ref_template="#/components/schemas/{model}")
    examples = {name: {"value": value} for name, value in EXAMPLES[body].items()}
    content: dict[str, Any] = {"application/json": {"schema": schema, "examples": examples}}
    if "image" in schema["properties"]:
        content["multipart/form-data"] = {"schema": _form(schema)}
    parameters = [_parameter("Idempotency-Key", "header", "with it, a repeated request adds once", "string")]
    described_as = " ".join(DECISION.split()) if body is SearchBody else "Done"
    answer = {"description": described_as, "content": {"application/json": {"example": ANSWERS[body]}}}
    return {
        "openapi_extra": {
            "requestBody": {"required": True, "content": content},
            "parameters": parameters if body is ItemBody else [],
        },
        "responses": {status: answer, "4XX": PROBLEMS, "503": PROBLEMS, "504": PROBLEMS},
    }


def described_answer(example: Any) -> dict[str, Any]:
    """The arguments of a route without a body that describe what it answers in JSON."""
    answer = {"description": "Done", "content": {"application/json": {"example": example}}}
    return {"responses": {200: answer, "4XX": PROBLEMS}}


def described_image(max_side: int) -> dict[str, Any]:
    """The arguments of a route that answers with a JPEG."""
    size = _parameter("size", "query", "pixels of the longer side", "integer", minimum=1, maximum=max_side, default=256)
    answer = {"description": "The image", "content": {"image/jpeg": {}}}
    return {"openapi_extra": {"parameters": [size]}, "responses": {200: answer, "4XX": PROBLEMS}}


def _parameter(name: str, place: str, text: str, kind: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": place, "description": text, "required": False, "schema": {"type": kind, **schema}}


def _form(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a form: the image is a file, and lists and mappings are JSON."""
    properties = dict(schema["properties"])
    properties["image"] = {"type": "string", "contentMediaType": "application/octet-stream"}
    for name in FORM_TEXT:
        if name in properties:
            properties[name] = {"type": "string", "contentMediaType": "application/json"}
    return {"type": "object", "properties": properties}
