"""Flip and color jitter of batches on a device: the pixels of the transform for training, with its random numbers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision.transforms import v2

from tests.pretend_device import on_device, pretend_device
from vicinal.data import ImageDataset, ImageTransform, Table
from vicinal.data.batches import train_batches as batches_module
from vicinal.data.batches.train_batches import TrainImages, train_batches
from vicinal.data.images.augmentation import AugmentationSampler, augment, create_sampler

FAST = ImageTransform(size=40, color_jitter=0.4)
EXACT = replace(FAST, fast=False)
SIDES = [(60, 47), (40, 40), (90, 33), (44, 71), (51, 50), (64, 64)]
PLAN = [[0, 1, 2, 3, 4, 5, 0], [5, 2], [1]]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Noise, smooth colors, and gray images, whose rounding is that of the weights of a gray level."""
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for row, (width, height) in enumerate(SIDES):
        cells = (width, height) if row % 3 == 0 else (4, 5)
        image = Image.fromarray(rng.integers(0, 256, (cells[1], cells[0], 3), dtype=np.uint8))
        image = image.resize((width, height), Image.Resampling.BICUBIC)
        (image.convert("L") if row % 3 == 1 else image).save(folder / f"{row}.png")
    return Table(pd.DataFrame({"path": [f"{row}.png" for row in range(6)], "label": list("aabbcc")}), root=folder)


def on_workers_and_device(table: Table, transform: ImageTransform) -> tuple[list[Tensor], list[Tensor]]:
    """The images of an epoch as workers make them, and as they are after the changes that workers left."""
    dataset, results = ImageDataset(table, transform), []
    for where in ("workers", "device"):
        source = train_batches(dataset, PLAN, (3,), where)  # type: ignore[arg-type]
        results.append([image for number in range(len(PLAN)) for image in changed(source[number], transform)])
    return results[0], results[1]


def changed(batch: dict[str, Any], transform: ImageTransform) -> Sequence[Tensor]:
    images, parameters = batch["images"], batch.get("augmentation")
    if parameters is None:
        return images
    if isinstance(images, Tensor):
        return augment(images, parameters, transform)
    return [augment(each[None], parameters[i : i + 1], transform)[0] for i, each in enumerate(images)]


def differences(pairs: tuple[list[Tensor], list[Tensor]]) -> Tensor:
    return torch.cat([(one.int() - other.int()).abs().flatten() for one, other in zip(*pairs, strict=True)])


@pytest.mark.parametrize(
    "transform",
    [
        EXACT,
        replace(EXACT, color_jitter=1.0, rotation=15.0),
        replace(EXACT, interpolation="nearest", flip=0.0),
        ImageTransform(size=40, fast=False, channels=1, color_jitter=0.4),
        ImageTransform(longest=48, color_jitter=0.4, rotation=10.0),
    ],
)
def test_pixels_are_those_of_workers_to_the_last_bit(table: Table, transform: ImageTransform) -> None:
    assert differences(on_workers_and_device(table, transform)).max() == 0


@pytest.mark.parametrize(("jitter", "channels"), [(0.4, 3), (1.0, 1)])
@pytest.mark.parametrize("is_fused", [True, False])
def test_pixels_resized_by_torch_differ_by_two_levels_at_most(
    table: Table, jitter: float, channels: int, is_fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_fused:  # as devices may compute
        monkeypatch.setattr(torch, "addcmul", lambda total, one, other: total + one * other)
    transform = ImageTransform(size=40, color_jitter=jitter, channels=channels)  # type: ignore[arg-type]
    found = differences(on_workers_and_device(table, transform))
    assert found.max() <= 2
    assert (found > 0).double().mean() <= 0.001


@pytest.mark.parametrize("more", [-1, 0])
def test_the_mean_of_a_large_image_is_exact(more: int) -> None:
    """Which is about half a gray level, of sums that float32 rounds."""
    levels = np.full((600, 600), 250, dtype=np.uint8)
    levels.flat[: levels.size // 2 + more] += 1
    changed = np.asarray(v2.functional.adjust_contrast(Image.fromarray(levels), 0.3))
    transform = ImageTransform(size=600, channels=1, flip=0.0, color_jitter=0.4, fast=False)
    found = augment(torch.from_numpy(levels)[None, None], torch.tensor([[0.3, 0.7, 0.0, 1.0]]), transform)
    assert np.array_equal(found[0, 0], changed)


def test_a_transform_without_such_changes_leaves_nothing_to_the_device(table: Table) -> None:
    transform = ImageTransform(size=40, flip=0.0, rotation=10.0)
    assert create_sampler(transform) is None
    source = train_batches(ImageDataset(table, transform), PLAN, (3,), "device")
    assert source.images[source.parts()[0]].augmentation is None
    assert "augmentation" not in source[0]
    assert differences(on_workers_and_device(table, transform)).max() == 0


@pytest.mark.parametrize("transform", [FAST, ImageTransform(longest=48, color_jitter=0.4)])
def test_batches_are_the_same_whoever_loads_which_part(table: Table, transform: ImageTransform, monkeypatch) -> None:
    monkeypatch.setattr(batches_module, "PART_SIZE", 3)
    source = train_batches(ImageDataset(table, transform), PLAN, (7,), "device")
    expected = [source[number] for number in range(len(PLAN))]
    assert [len(batch["augmentation"]) for batch in expected] == [7, 2, 1]
    images = TrainImages(source.images.dataset, "device")
    for start, workers in ((0, 0), (1, 2)):
        parts = DataLoader(images, batch_size=None, sampler=source.parts(start), num_workers=workers)
        for one, other in zip(source.collate(iter(parts), start), expected[start:], strict=True):
            assert torch.equal(one["augmentation"], other["augmentation"])
            assert all(map(torch.equal, one["images"], other["images"]))


def drawn(transform: ImageTransform, number: int) -> tuple[Tensor, Tensor]:
    generator, sampler = torch.Generator().manual_seed(0), AugmentationSampler(transform)
    pixels = torch.randint(0, 256, (number, 3, 9, 8), generator=generator, dtype=torch.uint8)
    return pixels, torch.stack([sampler.draw() for _ in range(number)])


@pytest.mark.parametrize(
    ("transform", "launches"), [(FAST, 38), (EXACT, 50), (ImageTransform(size=40), 3), (replace(FAST, flip=0.0), 35)]
)
def test_on_devices_launches_do_not_grow_and_nothing_waits(transform: ImageTransform, launches: int) -> None:
    for number in (2, 50):
        pixels, parameters = drawn(transform, number)
        with pretend_device() as device:
            found = augment(on_device(pixels), on_device(parameters), transform)
            assert not device.waits
            assert device.launches <= launches
        assert torch.equal(found.values, augment(pixels, parameters, transform))  # type: ignore[attr-defined]


def test_autocast_changes_no_pixel() -> None:
    pixels, parameters = drawn(FAST, 6)
    with torch.autocast("cpu", torch.bfloat16):
        found = augment(pixels, parameters, FAST)
    assert torch.equal(found, augment(pixels, parameters, FAST))
