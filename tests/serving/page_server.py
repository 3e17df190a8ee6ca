"""A service of little colored pictures on loopback, which notes what it is asked and can be busy."""

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import uvicorn
from PIL import Image

from tests.conftest import free_port
from vicinal.data import Table
from vicinal.retrieval import Index
from vicinal.retrieval.calibration import example_calibration
from vicinal.serving.app import create_app
from vicinal.serving.problems import problem_response
from vicinal.serving.security import access_for
from vicinal.serving.service import Service

COLORS = {"red": (200, 40, 40), "green": (40, 170, 60), "blue": (50, 70, 200)}
NUM_EACH = 6
MARKUP = '<img src="x" alt="made of a column"> & "quotes"'
Note = dict[str, Any]


class MeanColor:
    """An embedder that sees nothing but the mean color of a picture."""

    def embed(self, images: Sequence[Image.Image], **_: Any) -> np.ndarray:
        means = np.array([np.asarray(each.convert("RGB"), np.float32).mean((0, 1)) for each in images])
        return means / np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-9)


def draw(path: Path, *colors: str, size: tuple[int, int] = (120, 80), **options: Any) -> Path:
    """A picture of vertical stripes, one per color."""
    width, height = size
    edges = np.linspace(0, width, len(colors) + 1).astype(int)
    pixels = np.zeros((height, width, 3), np.uint8)
    for color, start, stop in zip(colors, edges, edges[1:], strict=False):
        pixels[:, start:stop] = COLORS[color]
    Image.fromarray(pixels).save(path, **options)
    return path


def make_index(folder: Path, has_calibration: bool = True) -> Path:
    """An index of pictures of three colors, each a little different."""
    rng, rows = np.random.default_rng(0), []
    (folder / "photos").mkdir(parents=True)
    for number in range(NUM_EACH * len(COLORS)):
        label = list(COLORS)[number % len(COLORS)]
        pixels = np.clip(COLORS[label] + rng.normal(0, 30, 3) + rng.normal(0, 9, (96, 128, 3)), 0, 255)
        path = folder / "photos" / f"{label}{number}.png"
        Image.fromarray(pixels.astype(np.uint8)).save(path)
        row = {"path": str(path), "label": label, "note": f"{number} {MARKUP}", "price": 1.5 * number}
        rows.append({**row, "size": "SML"[number // 3 % 3], "in stock": number % 2 == 0})
    table = Table(pd.DataFrame(rows))
    index = Index.build(MeanColor().embed([Image.open(row["path"]) for row in rows]), table)
    if has_calibration:
        index.calibration = example_calibration()
    index.root = str(folder / "photos")
    index.save(folder / "index")
    return folder / "index"


class Watched:
    """An ASGI application that notes the requests for another one.

    Attributes:
        notes: path and body of each request.
        num_busy: the next searches that are answered by 429.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self.notes: list[Note] = []
        self.num_busy = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        note = {"path": scope["path"], "body": b""}
        self.notes.append(note)

        async def noted() -> Any:
            message = await receive()
            note["body"] += message.get("body", b"")
            return message

        if scope["path"] == "/search" and self.num_busy:
            self.num_busy -= 1
            while (await noted()).get("more_body"):
                pass
            problem = problem_response(429, "too many wait", {"Retry-After": "1"})
            return await problem(scope, receive, send)
        return await self._app(scope, noted, send)

    def searches(self) -> list[Note]:
        return [note for note in self.notes if note["path"] == "/search"]


@contextlib.contextmanager
def serve(app: Any) -> Iterator[str]:
    """Serve an application on loopback; yields its address."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the service has not started"
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)


def watched_app(index: Path, embedder: Any = None, token: str | None = None, read_only: bool = True) -> Watched:
    service = Service(index, embedder, read_only=read_only)
    return Watched(create_app(service, access_for("127.0.0.1", token)))


def sent_image(note: Note) -> Image.Image:
    _, start, rest = note["body"].partition(b'name="image"')
    assert start, note["body"][:200]
    return Image.open(BytesIO(rest.partition(b"\r\n\r\n")[2]))
