"""Memory in channels-last order, pinned memory, and copies that do not wait are used."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.training.runs import gradients, trainer
from vicinal.data.batches import image_dataset
from vicinal.models import Embedder
from vicinal.training import Trainer, feature_cache, training_data

SGD = ["--optimizer.name=sgd", "--optimizer.lr=1", "--schedule.name=constant", "--loss=MultiSimilarityLoss"]


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


def test_copies_of_embedding_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    waits_not, to = [], Tensor.to

    def recorded(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if self.ndim == 4 and any(isinstance(each, torch.device) for each in [*args, kwargs.get("device")]):
            waits_not.append(bool(kwargs.get("non_blocking")))
        return to(self, *args, **kwargs)

    monkeypatch.setattr(Tensor, "to", recorded)
    Embedder("test_resnet", dim=8, pretrained=False).embed(torch.randn(3, 3, 32, 32), progress=False)
    assert waits_not == [True]


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
