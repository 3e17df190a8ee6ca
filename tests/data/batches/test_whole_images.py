"""Whole images: their transform, and the images of an epoch one by one, whoever reads them."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from vicinal.data import ImageDataset, ImageTransform, Table
from vicinal.data.batches.train_batches import TrainImages, WholeTrainBatches, train_batches
from vicinal.data.images.image_ops import Normalize

SIDES = [(40, 30), (20, 60), (33, 33), (12, 9), (64, 50), (30, 90)]
TRANSFORM = ImageTransform(longest=48, color_jitter=0.3, rotation=10.0)
PLAN = [[5, 0], [1, 1, 3], [4, 2], [0, 5]]


@pytest.fixture
def table(tmp_path: Path) -> Table:
    rng = np.random.default_rng(0)
    for row, (width, height) in enumerate(SIDES):
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(tmp_path / f"{row}.png")
    frame = pd.DataFrame({"path": [f"{row}.png" for row in range(6)], "label": list("aabbcc")})
    return Table(frame, root=tmp_path)


@pytest.mark.parametrize(
    ("width", "height", "expected"),
    [(40, 30, (30, 40)), (96, 48, (24, 48)), (48, 192, (48, 12)), (1, 480, (48, 1)), (3000, 1500, (24, 48))],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_images_keep_their_aspect_ratio_and_are_never_enlarged(
    width: int, height: int, expected: tuple[int, int], channels: int
) -> None:
    transform = ImageTransform(longest=48, channels=channels)
    image = Image.new("L" if channels == 1 else "RGB", (width, height))
    tested, trained = transform.test()(image), transform.train()(image)
    assert (tuple(tested.shape), tested.dtype) == ((channels, *expected), torch.float32)
    assert (tuple(trained.shape), trained.dtype) == ((channels, *expected), torch.uint8)


def test_training_is_the_test_view_with_the_random_changes_that_are_asked_for() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 70, 3), dtype=np.uint8))
    still = ImageTransform(longest=48, flip=0)
    tested = still.test()(image)
    assert torch.equal(Normalize(still)(still.train()(image)), tested)
    assert torch.equal(Normalize(still)(ImageTransform(longest=48, flip=1).train()(image)), tested.flip(-1))
    reduced = image.copy()
    reduced.thumbnail((48, 48), Image.Resampling.LANCZOS)
    assert torch.equal(still.train()(image), torch.from_numpy(np.array(reduced)).permute(2, 0, 1))
    for changed in (ImageTransform(longest=48, color_jitter=0.4), ImageTransform(longest=48, rotation=30.0)):
        assert not torch.equal(changed.train()(image), still.train()(image))


def epoch(table: Table, start: int = 0, seed: int = 0, **loader: Any) -> list[dict[str, Any]]:
    source = train_batches(ImageDataset(table, TRANSFORM), PLAN, (seed, 7))
    images = DataLoader(TrainImages(source.images.dataset), batch_size=None, sampler=source.parts(start), **loader)
    return list(source.collate(iter(images), start))


def same(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> bool:
    pairs = list(zip(first, second, strict=True))
    return all(
        len(a["images"]) == len(b["images"])
        and all(x.shape == y.shape and torch.equal(x, y) for x, y in zip(a["images"], b["images"], strict=True))
        and torch.equal(a["rows"], b["rows"])
        for a, b in pairs
    )


def test_batches_are_lists_of_images_with_labels_and_rows(table: Table) -> None:
    batches = epoch(table)
    assert [batch["rows"].tolist() for batch in batches] == PLAN
    assert [batch["labels"].tolist() for batch in batches] == [[2, 0], [0, 0, 1], [2, 1], [0, 2]]
    assert [tuple(image.shape) for image in batches[1]["images"]] == [(3, 48, 16), (3, 48, 16), (3, 9, 12)]
    assert not torch.equal(*batches[1]["images"][:2])  # each image has its own random changes
    assert not torch.equal(batches[0]["images"][1], batches[3]["images"][0])


def test_batches_depend_on_the_seed_and_not_on_who_reads_them_or_where_it_starts(table: Table) -> None:
    batches = epoch(table)
    torch.manual_seed(5)
    state, whole = torch.get_rng_state(), WholeTrainBatches(ImageDataset(table, TRANSFORM), PLAN, (0, 7))
    assert torch.equal(whole[1]["images"][1], batches[1]["images"][1])
    assert torch.equal(whole.images[whole.parts()[3]].pixels[0], batches[1]["images"][1])
    assert torch.equal(torch.get_rng_state(), state)
    assert same(epoch(table, num_workers=2), batches)
    assert same(epoch(table, start=2), batches[2:])
    assert epoch(table, start=4) == []
    assert not same(epoch(table, seed=1), batches)
