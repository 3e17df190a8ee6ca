"""What models cost, beside what they score: `vicinal evaluate --images photos/ A B run --compare`."""

import csv
import gc
import io
import json
import time
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import metrics_in, output, refused
from vicinal.data import ImageDataset, Table
from vicinal.data.images.transforms import ImageTransform
from vicinal.models import Embedder, embedder
from vicinal.utils.run_folder import TrainingCost
from vicinal.workflows import models as model_loading
from vicinal.workflows.model_costs import kind_of_training, timed

RECIPES = {
    "head": {"features": "frozen", "fine_tuning": {"method": "full"}},
    "lora": {"features": "trained", "fine_tuning": {"method": "lora"}},
}


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A backbone with random weights in place of published ones, two runs, and a model folder; here."""
    create = embedder.create_backbone

    def create_random(name: str, pretrained: bool | str | Path, *more: Any) -> torch.nn.Module:
        return create(name, False if pretrained is True else pretrained, *more)

    monkeypatch.setattr(embedder, "create_backbone", create_random)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    transform = ImageTransform(size=16)
    for number, (name, recipe) in enumerate(RECIPES.items()):
        Embedder("test_resnet", dim=8, pretrained=False, transform=transform).save_pretrained(f"{name}/model", recipe)
        Path(name, "recipe.yaml").write_text("made: up\n")
        TrainingCost(75.0 + number, 800).save(Path(name, "training.json"))
    Embedder("test_resnet", dim=4, pretrained=False, transform=transform).save_pretrained("other")
    return ["timm/test_resnet", "head", "lora/model", "other"]


def test_one_table_of_scores_and_costs(models: list[str], photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(output(capsys, "evaluate", "--images", photos, *models, "--compare", "--json"))
    costs = {row["model"]: row for row in found["costs"]}
    assert list(costs) == models
    kinds = [(row["kind"], row["dim"], row["size"]) for row in costs.values()]
    assert kinds == [("zero-shot", 96, 160), ("frozen", 8, 16), ("lora", 8, 16), ("model", 4, 16)]
    trained = [(row["trained_parameters"], row["training_seconds"]) for row in costs.values()]
    assert trained == [(0, 0.0), (800, 75.0), (800, 76.0), (None, None)]
    for name, folder in (("head", "head/model"), ("lora/model", "lora/model"), ("other", "other")):
        model = Embedder.from_pretrained(folder)
        assert costs[name]["num_parameters"] == sum(each.numel() for each in model.parameters())
        size = Path(folder, "model.safetensors").stat().st_size
        assert 0.95 * size < costs[name]["weights_bytes"] < size  # its header has names and shapes
        assert costs[name]["images_per_second"] > 0
    alone = json.loads(output(capsys, "evaluate", photos, "--model", "head", "--json"))
    assert metrics_in(found, model="head") == pytest.approx(metrics_in(alone))
    assert alone["costs"] is None
    lines = csv.DictReader(io.StringIO(output(capsys, "evaluate", "--images", photos, *models[2:], "--csv")))
    assert {(line["model"], line["kind"], line["training_seconds"]) for line in lines} == {
        ("lora/model", "lora", "76.0"), ("other", "model", ""),
    }  # fmt: skip


@pytest.mark.slow
def test_the_table_has_a_row_per_model(models: list[str], photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "evaluate", "--images", photos, *models, "--compare", "--recall_at", 1)
    head, costs, *metrics = text.rstrip().split("\n\n")
    assert "differences to timm/test_resnet in percentage points" in head
    assert [line.split()[0] for line in costs.splitlines()[1:]] == models
    assert costs.splitlines()[2].split()[1:-1] == ["frozen", "8", "16", "373", "k", "800", "1.5", "1", "min", "15", "s"]
    assert costs.splitlines()[4].split()[5:8] == ["k", "–", "1.5"]
    assert [block.split()[0] for block in metrics] == ["recall@1", "mAP@R", "R-precision", "mAP"]
    for block in metrics:
        assert [line.split()[0] for line in block.splitlines()[1:]] == models
        assert ["p" in line.split() for line in block.splitlines()[1:]] == [False, True, True, True]
    assert max(map(len, text.splitlines())) <= 100
    apart = output(capsys, "evaluate", "--images", photos, *models[1:3])
    assert apart.index("frozen") < apart.index("recall@1")  # models that are not compared have costs too
    assert "difference" not in apart


def test_costs_are_of_models_only(models: list[str], photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output(capsys, "embed", photos, "--model", "head", "--out", "v.parquet")
    output(capsys, "embed", photos, "--model", "other", "--out", "w.parquet")
    assert json.loads(output(capsys, "evaluate", "v.parquet", "w.parquet", "--compare", "--json"))["costs"] is None
    Table.from_folder(photos).save("head/table.parquet")
    stored, embedded = json.loads(output(capsys, "evaluate", "w.parquet", "head", "--compare", "--json"))["costs"]
    assert (stored["kind"], stored["dim"], stored["images_per_second"]) == ("embeddings", 4, None)
    assert (embedded["kind"], embedded["dim"], embedded["training_seconds"]) == ("frozen", 8, 75.0)
    averaged = ["evaluate", "--images", photos, "head", "lora", "--average", "--json"]
    assert json.loads(output(capsys, *averaged))["costs"] is None


@pytest.mark.slow
def test_one_model_is_in_memory_at_a_time(models: list[str], photos: Path, capsys, monkeypatch) -> None:
    alive: weakref.WeakSet[Embedder] = weakref.WeakSet()
    before: list[int] = []
    load = model_loading.load_model

    def counted_load(*arguments: Any) -> Embedder:
        gc.collect()
        before.append(len(alive))
        model = load(*arguments)
        alive.add(model)
        return model

    monkeypatch.setattr(model_loading, "load_model", counted_load)
    output(capsys, "evaluate", "--images", photos, *models[1:], "--compare")
    assert before == [0] * 6  # each is loaded to see that it can be, and again to embed


def test_damaged_files_of_models_and_runs_are_reported_before_images_are_read(
    models: list[str], photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Embedder, "embed", lambda *_, **__: pytest.fail("images were embedded"))
    Path("other", "model.safetensors").write_bytes(b"damaged")
    error = refused(capsys, "evaluate", "--images", photos, *models, "--compare")
    assert "other/model.safetensors" in error
    assert len(error.splitlines()) == 1
    Path("head", "training.json").write_text("{}")
    assert "head/training.json: damaged" in refused(capsys, "evaluate", "--images", photos, *models[1:3], "--compare")


@pytest.mark.parametrize(("longest", "number"), [(None, 10), (64, 1)])
def test_images_of_a_first_batch_are_not_files_and_not_timed(photos: Path, longest: int | None, number: int) -> None:
    images = ImageDataset(Table.from_folder(photos), ImageTransform(size=16, longest=longest))
    calls: list[tuple[int, bool]] = []

    def embed(source: Any, batch_size: int, progress: bool = True) -> np.ndarray:
        calls.append((len(source), isinstance(source, ImageDataset)))
        time.sleep(0.5 if len(calls) == 1 else 0.05)
        return np.zeros((len(source), 2), np.float32)

    vectors, seconds = timed(embed, images, batch_size=10)
    assert calls == [(number, False), (48, True)]
    assert len(vectors) == 48
    assert 0.05 <= seconds < 0.4


@pytest.mark.parametrize(
    ("recipe", "kind"),
    [
        ({}, "model"),
        ({"fine_tuning": {"method": "full"}}, "full"),
        ({"fine_tuning": {"method": "last_blocks"}, "epochs": 3, "freeze_backbone_epochs": 2}, "last_blocks"),
        ({"fine_tuning": {"method": "full"}, "epochs": 3, "freeze_backbone_epochs": 3}, "frozen"),
        ({"fine_tuning": {"method": "full"}, "optimizer": {"lr_factors": {"backbone": 0.0}}}, "frozen"),
        ({"fine_tuning": {"method": ["full"]}, "features": "frozen"}, "model"),
        ({"fine_tuning": "\x1b[2J", "optimizer": None}, "model"),
    ],
)
def test_how_a_model_was_trained_is_read_from_its_recipe(recipe: dict[str, Any], kind: str) -> None:
    assert kind_of_training(recipe, is_backbone=False) == kind
