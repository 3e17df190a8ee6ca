"""A model, pictures with an index of them, and a service that tests read."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch
from fastapi.testclient import TestClient

from tests.serving.page_server import MeanColor, Watched, make_index, serve, watched_app
from tests.serving.service import DIM, client_of, noise
from vicinal import Embedder, Index, Table
from vicinal.data import ImageTransform


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def model() -> Embedder:
    torch.manual_seed(0)
    return Embedder("test_resnet", dim=DIM, pretrained=False, transform=ImageTransform(size=32)).eval()


@pytest.fixture(scope="session")
def pictures(model: Embedder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pictures in `photos` and an `index` of them."""
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "photos").mkdir()
    for number in range(12):
        (folder / "photos" / f"{number}.png").write_bytes(noise(number))
    labels = [f"class{number % 3}" for number in range(12)]
    paths = [str(folder / "photos" / f"{number}.png") for number in range(12)]
    frame = pd.DataFrame({"path": paths, "label": labels, "price": range(12), "new": [True, False] * 6})
    vectors = model.embed(Table(frame), progress=False)
    index = Index.build(vectors, Table(frame), model_fingerprint=model.fingerprint())
    index.root = str(folder / "photos")
    index.save(folder / "index")
    return folder


@pytest.fixture(scope="session")
def client(pictures: Path, model: Embedder) -> Iterator[TestClient]:
    """A client of a service of the pictures; tests that change something delete it again."""
    with client_of(pictures / "index", model, max_pixels=1_000_000, max_k=100, max_filter=200) as each:
        yield each


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[tuple[str, Watched]]:
    """A service of colored pictures on loopback: its address and its application."""
    app = watched_app(make_index(folder), MeanColor())
    with serve(app) as address:
        yield address, app
