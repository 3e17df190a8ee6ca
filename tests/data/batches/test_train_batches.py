"""Batches of training images: the same numbers whoever loads which part of them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from tests.conftest import draw_noise
from tests.pretend_device import is_on_device, on_device, pretend_device
from vicinal.data import ImageDataset, ImageTransform, Table, TrainBatches
from vicinal.data.batches import train_batches
from vicinal.data.batches.train_batches import TrainImages
from vicinal.data.images.image_ops import normalized
from vicinal.utils.seeds import seeded

TRANSFORM = ImageTransform(size=12, color_jitter=0.3, rotation=10.0)
PLAN = [[0, 1, 2, 3, 4], [5, 6], [6, 5, 4, 3, 2, 1, 0], [0]]


@pytest.fixture
def dataset(tmp_path: Path) -> ImageDataset:
    return ImageDataset(Table(draw_noise(tmp_path, "abacbac"), root=tmp_path), TRANSFORM)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_batches, "PART_SIZE", 3)


def loaded(batches: TrainBatches, start: int = 0, **loader: Any) -> list[dict[str, Any]]:
    parts = DataLoader(TrainImages(batches.images.dataset), batch_size=None, sampler=batches.parts(start), **loader)
    return list(batches.collate(iter(parts), start))


def test_a_batch_is_its_parts_whoever_loads_them_and_wherever_it_starts(dataset: ImageDataset) -> None:
    batches = TrainBatches(dataset, PLAN, (7, 1))
    expected = [batches[number] for number in range(4)]
    assert [len(part.rows) for part in batches.parts()] == [3, 2, 2, 3, 3, 1, 1]
    assert [batch["rows"].tolist() for batch in expected] == PLAN
    assert [batch["labels"].tolist() for batch in expected[:2]] == [[0, 1, 0, 2, 1], [0, 2]]
    assert expected[0]["labels"].dtype == expected[0]["rows"].dtype == torch.int64
    assert all(batch["images"].shape == (len(rows), 3, 12, 12) for batch, rows in zip(expected, PLAN, strict=True))
    for start, workers in ((0, 0), (0, 2), (2, 2)):
        found = loaded(batches, start, num_workers=workers)
        for one, other in zip(found, expected[start:], strict=True):
            assert all(torch.equal(one[key], other[key]) for key in ("images", "labels", "rows"))


def test_images_are_those_of_the_transform_with_the_seed_of_their_batch(dataset: ImageDataset) -> None:
    """As before there were parts: to the last bit, for batches of one part."""
    transform, batch = TRANSFORM.train(), TrainBatches(dataset, PLAN, (7, 1))[1]
    with seeded(7, 1, 1):
        expected = torch.stack([dataset.load(row, transform) for row in PLAN[1]])
    assert batch["images"].dtype == torch.uint8
    assert torch.equal(normalized(batch["images"], TRANSFORM), expected)


def test_the_parts_of_a_batch_have_their_own_random_numbers(dataset: ImageDataset) -> None:
    images = TrainBatches(dataset, [[0, 1, 2, 0, 1, 2]], (7, 1))[0]["images"]
    assert not torch.equal(images[:3], images[3:])


def test_pixels_are_normalized_on_their_device_without_a_wait_and_to_the_same_bits() -> None:
    pixels = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    with pretend_device() as device:
        normalized(on_device(pixels[:1]), TRANSFORM)  # copies mean and standard deviation once
        device.waits.clear()
        found = normalized(on_device(pixels), TRANSFORM)
        assert is_on_device(found)
        assert not device.waits
        values = found.cpu()
    assert torch.equal(values, normalized(pixels, TRANSFORM))
