"""The application around a service: its endpoints, their description (OpenAPI), and the server."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from starlette.middleware.cors import CORSMiddleware

from vicinal import __version__
from vicinal.serving.bodies import DeleteBody, EmbedBody, ItemBody, SearchBody, read_body, read_id
from vicinal.serving.guard import Guard, Monitor
from vicinal.serving.page import router as page_router
from vicinal.serving.problems import MEDIA_TYPE, Defects, Problem, add_problem_handlers
from vicinal.serving.security import Access, Security
from vicinal.serving.service import Service
from vicinal.utils.console import log
from vicinal.utils.errors import InputError

BACKLOG = 1024
MAX_HEADERS = 32 * 2**10  # bytes
KEEP_ALIVE = 30  # seconds that a connection without requests is kept
MAX_SIDE = 1024  # pixels of a thumbnail
MAX_KEY = 200  # characters of an Idempotency-Key
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
PROBLEMS = {"description": "The error", "content": {MEDIA_TYPE: {"example": PROBLEM}}}
ITEM = {name: MATCH[name] for name in ("id", "label", "columns")}
INFO = {
    "name": "gallery", "engine": "folder", "is_connected": True, "images": 1204, "dim": 512, "kind": "exact",
    "model": {"fingerprint": "8c1f0e6f2a7b9d34", "name": "run"}, "refiner": {"fingerprint": None},
    "calibration": {"score": "similarity", "threshold": 0.71},
    "local": {"grid": [14, 14], "square": 0.8, "weight": 0.5},
    "columns": [{"name": "price", "type": "number", "values": None}], "limits": {"max_k": 1000},
    "can_write": True, "can_embed": True, "version": "0.1.0",
}  # fmt: skip
FORM_TEXT = ("box", "vector", "columns")  # fields that are JSON in a form


def described(body: type[BaseModel], status: int = 200) -> dict[str, Any]:
    """The arguments of a route that describe its request body and its answer."""
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
    """The arguments of a route without a request body that describe its answer in JSON."""
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


router = APIRouter()


def _service(request: Request) -> Service:
    return request.app.state.service


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
    """Add an item; the answer comes once the change is on disk."""
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
    """The index, its columns, and the limits of the service."""
    return JSONResponse(await _service(request).info())


@router.get("/health")
async def health() -> Response:
    """Whether the process is alive."""
    return JSONResponse({"status": "alive"})


@router.get("/ready")
async def ready(request: Request) -> Response:
    """Whether requests are answered now."""
    if not _service(request).is_ready:
        raise Problem(503, "the service is starting or stopping", {"Retry-After": "1"})
    if not _service(request).store.is_connected:
        raise Problem(503, "the database of the index does not answer now", {"Retry-After": "2"})
    return JSONResponse({"status": "ready"})


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Counters and times for Prometheus."""
    return Response(generate_latest(_service(request).metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _id(text: str) -> int:
    try:
        return read_id(text)
    except ValueError:
        raise Problem(404, "no such item; an id is a whole number") from None


class _Server(uvicorn.Server):
    """A server that logs its address, and that a signal stops without an error."""

    def __init__(self, config: uvicorn.Config, service: Service, address: str) -> None:
        super().__init__(config)
        self._service, self._address = service, address

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            log(f"serving {self._service.store.place} at {self._address}")

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        old = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: Any) -> None:
        self._service.is_stopping = True
        super().handle_exit(sig, frame)


def run(service: Service, host: str, port: int, access: Access, is_logged: bool = True) -> None:
    """Serve until a signal stops it; SIGTERM and Ctrl-C let the requests in flight end."""
    with _listening(host, port) as listener, service:
        config = uvicorn.Config(
            create_app(service, access, is_logged),
            access_log=False,
            log_config=None,
            server_header=False,
            lifespan="on",
            http="h11",  # which limits the size of headers
            ws="none",
            proxy_headers=False,
            backlog=BACKLOG,
            h11_max_incomplete_event_size=MAX_HEADERS,
            timeout_keep_alive=KEEP_ALIVE,
            timeout_graceful_shutdown=int(service.limits.request_seconds) + 1,
        )
        name = f"[{host}]" if ":" in host else host
        _Server(config, service, f"http://{name}:{listener.getsockname()[1]}").run([listener])


@contextlib.contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """A bound socket, on which no other process listens."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError:
        raise InputError(f"--host {host}: no such address") from None
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            raise InputError(
                f"cannot listen on {host}, port {port}: {(error.strerror or str(error)).lower()}"
            ) from None
        yield listener


def create_app(service: Service, access: Access | None = None, is_logged: bool = False) -> FastAPI:
    """Create the ASGI application of a service.

    Args:
        service: the service.
        access: the rules of access; None: everyone, for tests and for applications with rules of their own.
        is_logged: whether a line about each request is written to stderr.
    """
    access = access or Access()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = FastAPI(title="Vicinal", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.service = service
    add_problem_handlers(app)
    app.include_router(router)
    app.include_router(page_router)
    # the last one is the first to see a request
    app.add_middleware(Guard, limits=service.limits, load=service.load)
    app.add_middleware(Defects)
    app.add_middleware(Security, access=access)
    if access.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(access.origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key"],
        )
    app.add_middleware(Monitor, metrics=service.metrics, is_logged=is_logged)
    return app
