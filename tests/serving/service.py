"""A small index of pictures with a model, and clients of a service of it."""

import io
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from fastapi.testclient import TestClient
from PIL import Image

from vicinal import Index, Table
from vicinal.retrieval.calibration import example_calibration
from vicinal.serving.app import create_app
from vicinal.serving.limits import Limits
from vicinal.serving.security import Access
from vicinal.serving.service import Service

DIM = 8
ADDRESS = "http://127.0.0.1"


def random_vectors(count: int, seed: int = 0, dim: int = DIM) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)


def save_index(folder: Path, count: int = 30, kind: Any = "exact", is_calibrated: bool = False, **columns: Any) -> Path:
    """An index of random vectors; its pictures would be in `folder/photos`."""
    root = folder / "photos"
    frame = pd.DataFrame({
        "path": [str(root / f"{i}.png") for i in range(count)],
        "label": [f"class{i % 3}" for i in range(count)],
        "price": range(count),
        **columns,
    })  # fmt: skip
    index = Index.build(random_vectors(count), Table(frame), kind)
    index.root = str(root)
    if is_calibrated:
        index.calibration = example_calibration()
    index.save(folder / "index")
    return folder / "index"


@contextmanager
def client_of(folder: Path, model: Any = None, access: Access | None = None, **options: Any) -> Iterator[TestClient]:
    """A client of a service; `options` are those of the service, and limits."""
    names = {name: options.pop(name) for name in list(options) if name in Limits.__dataclass_fields__}
    service = Service(folder, model, Limits(**names), **options)
    app = create_app(service, access)
    with TestClient(app, base_url=ADDRESS, raise_server_exceptions=False) as client:
        client.service = service  # type: ignore[attr-defined]
        yield client


def picture(color: Any = "red", size: tuple[int, int] = (40, 30), kind: str = "PNG", mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size, color).save(buffer, kind)
    return buffer.getvalue()


def noise(seed: int, size: tuple[int, int] = (40, 30)) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def vector_list(seed: int) -> list[float]:
    return random_vectors(1, seed)[0].tolist()


def wait_for(holds: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)
