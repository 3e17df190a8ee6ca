"""Training with augmentation on the device: the steps and the runs of augmentation by workers."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.pretend_device import module_on_device, pretend_device
from tests.training.runs import interrupted, weights
from tests.training.test_on_device import LABELS, MODULES, co_teaching, gradients, plain, prism, step
from vicinal.data import ImageTransform
from vicinal.data.images.augmentation import AugmentationSampler, augment
from vicinal.training import Recipe, resume, train

TRANSFORM = ImageTransform(size=32, color_jitter=0.4)
EXACT = (
    "--transform.color_jitter=0.4",
    "--transform.fast=false",
    "--model.dropout=0.2",
    "--model.freeze_batch_norm=statistics",
    "--micro_batch_size=3",
    "--epochs=1",
)


def batch() -> dict[str, Tensor]:
    """Images, labels and what is left to the device."""
    torch.manual_seed(0)
    pixels = torch.randint(0, 256, (len(LABELS), 3, 32, 32), dtype=torch.uint8)
    sampler = AugmentationSampler(TRANSFORM)
    return {"images": pixels, "labels": LABELS, "augmentation": torch.stack([sampler.draw() for _ in LABELS])}


@pytest.mark.parametrize("create", [plain, lambda: plain(5), prism, co_teaching])
def test_a_step_is_that_of_augmented_images(create) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    module = create().train()
    for embedder in module.embedders:
        embedder.transform = TRANSFORM
    other, left = copy.deepcopy(module), batch()
    made = augment(left["images"], left["augmentation"], TRANSFORM)
    assert step(module, left) == step(other, {"images": made, "labels": LABELS})
    assert all(map(torch.equal, gradients(module), gradients(other)))


def test_both_passes_of_two_stage_backpropagation_see_the_same_pixels() -> None:
    module, seen = plain(5).train(), []
    module.embedder.transform = TRANSFORM
    module.embedder.backbone.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach().clone()))
    step(module, batch())
    assert [len(each) for each in seen] == [5, 5, 2, 5, 5, 2]
    assert all(map(torch.equal, seen[:3], seen[3:]))


@pytest.mark.parametrize(("name", "more"), [("one pass", 1), ("micro-batches", 6)])
def test_on_a_device_nothing_more_waits_and_launches_are_few(name: str, more: int) -> None:
    create, waits, launches = MODULES[name]
    module = create().train()
    module.embedder.transform = TRANSFORM
    with pretend_device():
        module_on_device(module)
        step(module, batch())
    with pretend_device() as device:
        step(module, batch())
    assert device.waits.total() <= waits, device.waits
    assert device.launches <= launches + 45 * more


@pytest.mark.parametrize("where", ["device", pytest.param("workers", marks=pytest.mark.slow)])
def test_a_run_is_that_of_workers_wherever_it_is_resumed(small: list[str], tmp_path: Path, where: str) -> None:
    """Also where it began on the device and goes on in workers, as on another machine."""
    settings = [*small, *EXACT]
    straight = train(Recipe.load(overrides=[*settings, "--data.augmentation=workers"]), tmp_path / "workers")
    begun = interrupted([*settings, "--data.augmentation=device"], tmp_path / "device", 2)
    more = [f"--data.num_workers={int(where == 'workers')}", f"--data.augmentation={where}"]
    resumed = resume(begun.path, Recipe.load(overrides=[*settings, *more]))
    assert f"augmentation: {where}\n" in resumed.recipe.read_text()
    assert weights(resumed) == weights(straight)
