"""An embedder with a small convolutional backbone, its export, and labeled pictures."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from vicinal.data import ImageTransform, Table
from vicinal.export import export_model
from vicinal.models import Embedder


def build(backbone: str = "test_resnet", size: int = 32, **options: object) -> Embedder:
    """An embedder with random weights, always the same."""
    torch.manual_seed(0)
    options = {"dim": 8, "pretrained": False, "transform": ImageTransform(size=size), **options}
    return Embedder(backbone, **options).eval()


@pytest.fixture(scope="session", autouse=True)
def _quick_speeds() -> Iterator[None]:
    """Speeds are from a few calls: it is only tested that they are there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vicinal.export.parity.SPEED_SECONDS", 0.0)
        yield


@pytest.fixture(scope="session")
def model() -> Embedder:
    return build()


@pytest.fixture(scope="session")
def table(photos: Path) -> Table:
    return Table.from_folder(photos)


@pytest.fixture(scope="session")
def onnx_file(model: Embedder, table: Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, exported in float32 from pixels."""
    path = tmp_path_factory.mktemp("exported") / "model.onnx"
    export_model(model, path, check=table)
    return path
