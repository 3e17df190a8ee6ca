"""Memory in channels-last order, pinned memory, and copies that do not wait: they are used, and change no result."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.training.runs import trainer
from tests.training.test_fine_tuning import gradients
from vicinal.data.batches import image_dataset
from vicinal.models import Embedder
from vicinal.training import Trainer, feature_cache, training_data

NETWORKS = {
    "resnet": ["--model.backbone=test_resnet"],
    "convnext": ["--model.backbone=test_convnext", "--transform.size=32"],
}
SGD = ["--optimizer.name=sgd", "--optimizer.lr=1", "--schedule.name=constant", "--loss=MultiSimilarityLoss"]


@pytest.mark.parametrize("network", NETWORKS)
def test_channels_last_changes_neither_gradients_nor_embeddings(
    small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: str
) -> None:
    settings = [*small, *SGD, *NETWORKS[network], "--transform.scale=[0.2, 1.0]"]
    fast = trainer(settings, tmp_path / "fast")
    with monkeypatch.context() as patch:
        patch.setattr(torch, "channels_last", torch.contiguous_format)
        plain = trainer(settings, tmp_path / "plain")
        expected = gradients(plain)
        images = torch.randn(3, 3, 32, 32)
        embeddings = plain.embedder.embed(images, progress=False)
    weights = [[each for each in one.embedder.backbone.parameters() if each.ndim == 4] for one in (fast, plain)]
    assert all(map(is_channels_last, weights[0]))
    assert not all(map(is_channels_last, weights[1]))
    assert max(step.abs().max() for step in expected) > 1e-3
    for a, b in zip(expected, gradients(fast), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=3e-5)
    np.testing.assert_allclose(fast.embedder.embed(images, progress=False), embeddings, atol=1e-4)


def test_convolutions_get_and_keep_channels_last(small: list[str], tmp_path: Path) -> None:
    """Also after a step, and after a model was saved and loaded."""
    one = trainer([*small, *SGD], tmp_path / "run")
    gradients(one)
    one.embedder.save_pretrained(tmp_path / "model")
    for model in (one.embedder, Embedder.from_pretrained(tmp_path / "model")):
        convolutions = [each for each in model.backbone.modules() if isinstance(each, nn.Conv2d)]
        seen: list[bool] = []
        for each in convolutions:
            each.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(is_channels_last(args[0])))
        model.eval()(torch.randn(2, 3, 32, 32))
        assert all(seen)
        assert len(seen) == len(convolutions)
        assert all(is_channels_last(each.weight) for each in convolutions)


def is_channels_last(tensor: Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last)


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, bool]]:
    """The batches and labels that are moved to a device, and whether the copy does not wait."""
    calls: list[tuple[Tensor, bool]] = []
    to = Tensor.to

    def recorded(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if any(isinstance(each, torch.device) for each in [*args, kwargs.get("device")]):
            calls.append((self, bool(kwargs.get("non_blocking"))))
        return to(self, *args, **kwargs)

    monkeypatch.setattr(Tensor, "to", recorded)
    return calls


@pytest.mark.parametrize(
    "more",
    [
        [],
        ["--micro_batch_size=3", "--model.freeze_batch_norm=statistics"],
        ["--sample_selection.method=prism", "--sample_selection.warmup_epochs=0"],
        ["--sample_selection.method=co-teaching"],
    ],
)
def test_copies_do_not_wait(
    small: list[str], tmp_path: Path, moved: list[tuple[Tensor, bool]], more: list[str]
) -> None:
    one = trainer([*small], tmp_path / "run", *more)
    one.start()
    with one.watching():
        one._on_epoch_start()
        batches = next(one._batches_of_steps(one._plan()))
        moved.clear()
        one.train_step(batches, epoch=0.0, num_steps=2)
    one.log.close()
    labels, images = batches[0]["labels"], batches[0]["images"]
    if not any("prism" in each for each in more):  # which knows its classes on the CPU
        assert any(tensor is labels for tensor, _ in moved)
    assert any(tensor.shape[1:] == images.shape[1:] for tensor, _ in moved)
    assert all(waits_not for tensor, waits_not in moved if tensor is labels or tensor.ndim == 4)
    assert all(tensor.dtype == torch.uint8 for tensor, _ in moved if tensor.ndim == 4)  # normalized on the device


def test_copies_of_embedding_do_not_wait(moved: list[tuple[Tensor, bool]]) -> None:
    model = Embedder("test_resnet", dim=8, pretrained=False)
    model.embed(torch.randn(3, 3, 32, 32), progress=False)
    assert [waits_not for tensor, waits_not in moved if tensor.ndim == 4] == [True]


@pytest.mark.parametrize(("device", "pinned"), [("cuda", True), ("cpu", False)])
def test_images_for_a_gpu_are_read_into_pinned_memory(
    small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, pinned: bool
) -> None:
    given = []

    def loader(*_: object, **kwargs: Any) -> list[Any]:
        given.append(kwargs["pin_memory"])
        return []

    for module in (training_data, image_dataset):
        monkeypatch.setattr(module, "DataLoader", loader)
    one = trainer([*small], tmp_path / "run")
    one.engine.fabric = SimpleNamespace(device=torch.device(device))  # type: ignore[assignment]
    list(Trainer._load_batches(one, [], 0))
    weight = SimpleNamespace(device=torch.device(device), dtype=torch.float32)
    model = SimpleNamespace(parameters=lambda: iter([weight]), modules=list, eval=lambda: None, dim=8)
    model.transform, model.backbone = one.embedder.transform, model
    model.device, model.is_thread_safe = weight.device, False
    model.embedding_function = lambda precision: nullcontext(lambda images: np.empty((len(images), 8)))
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: torch.no_grad())
    Embedder.embed(model, one.images, progress=False)  # type: ignore[arg-type]
    list(feature_cache.FeaturePass(model, one.images).batches(len(one.images)))  # type: ignore[arg-type]
    assert given == [pinned] * 3
