"""A run, an index and a refiner for the tests of the command."""

from pathlib import Path

import pytest
import torch

from tests.conftest import SMALL
from tests.models.refiner_reference import PAPER
from vicinal.cli.main import main
from vicinal.models import ContextRefiner, Embedder


@pytest.fixture(scope="session")
def run(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    assert main(["train", "--data.source", str(photos), *SMALL, "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="session")
def index(run: Path, photos: Path) -> Path:
    folder = run.parent / "index"
    assert main(["index", "build", str(folder), str(photos), "--model", str(run)]) == 0
    return folder


@pytest.fixture(scope="session")
def refiner(run: Path) -> Path:
    """A refiner for the run's model that changes embeddings much."""
    torch.manual_seed(0)
    made = ContextRefiner(16, depth=2, num_heads=2, neighbors=4, **PAPER)
    for block in made.blocks:
        torch.nn.init.normal_(block.output, std=0.3)
    made.model_fingerprint = Embedder.from_pretrained(run / "model").fingerprint()
    made.save_pretrained(run.parent / "refiner")
    return run.parent / "refiner"
