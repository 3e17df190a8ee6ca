"""The endpoints of the service."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from vicinal.serving.bodies import DeleteBody, EmbedBody, ItemBody, SearchBody, read_body
from vicinal.serving.ids import read_id
from vicinal.serving.openapi import INFO, ITEM, described, described_answer, described_image
from vicinal.serving.problems import Problem
from vicinal.serving.service import Service

MAX_SIDE = 1024
MAX_KEY = 200

router = APIRouter()


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


@router.post("/search", **described(SearchBody))
async def search(request: Request) -> Response:
    """Find the items that are nearest to an image, a vector or another item."""
    return JSONResponse(await _service(request).search(await read_body(request, SearchBody)))


@router.post("/embed", **described(EmbedBody))
async def embed(request: Request) -> Response:
    """Compute the embedding of an image."""
    return JSONResponse(await _service(request).embed(await read_body(request, EmbedBody)))


@router.post("/items", status_code=201, **described(ItemBody, 201))
async def add_item(request: Request) -> Response:
    """Add an item; the answer comes when it cannot be lost any more."""
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= MAX_KEY:
        raise Problem(422, f"Idempotency-Key: it has {len(key):,} characters; use 1 to {MAX_KEY}")
    return JSONResponse(await _service(request).add(await read_body(request, ItemBody), key), 201)


@router.delete("/items", **described(DeleteBody))
async def delete_items(request: Request) -> Response:
    """Delete items by their ids or by a condition."""
    service = _service(request)
    return JSONResponse(await service.delete(await read_body(request, DeleteBody, service.limits.max_delete)))


@router.get("/items/{id}", **described_answer(ITEM))
async def item(request: Request, id: str) -> Response:
    """The columns of an item."""
    return JSONResponse(await _service(request).item(_id(id)))


@router.get("/items/{id}/image", **described_image(MAX_SIDE))
async def image(request: Request, id: str) -> Response:
    """The image of an item as a JPEG of at most `size` pixels per side."""
    text = request.query_params.get("size", "256")
    if not (text.isascii() and text.isdecimal() and len(text) < 6 and 1 <= int(text) <= MAX_SIDE):
        raise Problem(422, f"size: it must be a whole number of pixels from 1 to {MAX_SIDE}")
    data = await _service(request).thumbnail(_id(id), int(text))
    return Response(data, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=3600"})


@router.get("/info", **described_answer(INFO))
async def info(request: Request) -> Response:
    """What the service searches, and its limits."""
    return JSONResponse(await _service(request).info())


@router.get("/health")
async def health() -> Response:
    """Whether the process lives."""
    return JSONResponse({"status": "alive"})


@router.get("/ready")
async def ready(request: Request) -> Response:
    """Whether requests are answered now."""
    if not _service(request).is_ready:
        raise Problem(503, "the service starts or stops", {"Retry-After": "1"})
    if not _service(request).store.is_connected:
        raise Problem(503, "the database of the index does not answer now", {"Retry-After": "2"})
    return JSONResponse({"status": "ready"})


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Counters and times for Prometheus."""
    return Response(_service(request).metrics.text(), media_type=CONTENT_TYPE_LATEST)


def _id(text: str) -> int:
    try:
        return read_id(text)
    except ValueError:
        raise Problem(404, "there is no such item; an id is a whole number") from None
