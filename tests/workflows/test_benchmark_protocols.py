"""`vicinal evaluate` knows the protocol of a benchmark by its name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.conftest import metrics_in, output
from tests.data.benchmarks.published_more import MORE_WRITERS, accept_small_more
from vicinal.cli.main import main
from vicinal.data import load_table, save_embeddings
from vicinal.models import Embedder

pytestmark = pytest.mark.filterwarnings("ignore:class '10' is in the splits train and test")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model")
    Embedder("test_resnet", dim=8, pretrained=False).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("name", "metrics", "protocol"),
    [
        ("landmarks_v2", ["private/mAP@100", "public/mAP@100"], "listed positives"),
        ("met", ["GAP", "GAP-", "ACC"], "nearest-neighbor classifier"),
        ("roxford_1m", ["easy/mAP", "medium/mP@10", "hard/mP@1"], "revisited"),
    ],
)
def test_a_model_on_a_benchmark(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, name: str, metrics: list[str], protocol: str
) -> None:
    accept_small_more(monkeypatch)
    MORE_WRITERS[name](tmp_path)
    arguments = ["evaluate", model, "--images", name, "--root", tmp_path]
    found = json.loads(output(capsys, *arguments, "--json", "--intervals", "queries"))
    assert set(metrics) <= set(metrics_in(found))
    assert all(row["protocol"].startswith(protocol) for row in found["results"])
    assert all(row["low"] is not None for row in found["results"])
    for option in (["--recall_at", "1"], ["--metrics", "MRR"], ["--rerank", "contextual"]):
        assert main([str(each) for each in [*arguments, *option]]) == 2
        assert "cannot be combined with the protocol of" in capsys.readouterr().err


def test_a_file_of_embeddings_needs_the_protocol_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    accept_small_more(monkeypatch)
    MORE_WRITERS["landmarks_v2"](tmp_path)
    table = load_table("landmarks_v2", root=tmp_path)
    vectors = np.eye(table.labels.max() + 1)[table.labels]
    for name in ("v.parquet", "v.npy"):
        save_embeddings(tmp_path / name, vectors, table)
        found = output(capsys, "evaluate", tmp_path / name, "--protocol", "landmarks_v2", "--split", "test", "--json")
        assert metrics_in(json.loads(found)) == {"private/mAP@100": 1.0, "public/mAP@100": 1.0}
