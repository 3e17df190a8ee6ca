from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch._utils import ExceptionWrapper

from vicinal.data import ImageDataset, ImageTransform, Table, TrainBatches
from vicinal.utils.errors import InputError

TRANSFORM = ImageTransform(size=12, channels=1, color_jitter=0.3, rotation=10.0)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    rng = np.random.default_rng(0)
    for row in range(7):
        Image.fromarray(rng.integers(0, 256, (15, 18), dtype=np.uint8)).save(tmp_path / f"{row}.png")
    labels = ["a", "b", "a", "c", "b", "a", "c"]
    return Table(pd.DataFrame({"path": [f"{row}.png" for row in range(7)], "label": labels}), root=tmp_path)


def break_image(table: Table, row: int) -> None:
    Path(table.paths[row]).write_bytes(Path(table.paths[row]).read_bytes()[:60])


def test_images_are_read_in_the_mode_of_the_transform(table: Table) -> None:
    assert ImageDataset(table, TRANSFORM).read(3).mode == "L"
    assert ImageDataset(table, ImageTransform()).read(3).mode == "RGB"


@pytest.mark.parametrize("skip", [False, True])
def test_cached_images_are_decoded_once_and_the_same(table: Table, skip: bool) -> None:
    plain = ImageDataset(table, TRANSFORM)
    expected = [np.asarray(plain.read(row)) for row in range(7)]
    cached = ImageDataset(table, TRANSFORM, cache=True, on_error="skip" if skip else "raise")
    for path in table.paths:
        Path(path).unlink()
    for row in range(7):
        assert np.array_equal(np.asarray(cached.read(row)), expected[row])


@pytest.mark.parametrize("cache", [False, True])
def test_a_broken_image_is_named_with_row_and_path(table: Table, cache: bool) -> None:
    break_image(table, 4)
    with pytest.raises(InputError, match=rf"^row 4: {table.paths[4]}: broken image \(.*\)$"):
        ImageDataset(table, TRANSFORM, cache=cache).read(4)


@pytest.mark.parametrize("cache", [False, True])
def test_broken_images_are_left_out_and_counted(table: Table, cache: bool, capsys: pytest.CaptureFixture[str]) -> None:
    break_image(table, 1)
    Path(table.paths[4]).unlink()
    dataset = ImageDataset(table, TRANSFORM, cache=cache, on_error="skip")
    assert dataset.skipped == [1, 4]
    assert len(dataset) == 5
    assert dataset.table.paths == [table.paths[row] for row in (0, 2, 3, 5, 6)]
    assert dataset.table.classes == ["a", "c"]
    with Image.open(table.paths[5]) as image:
        assert np.array_equal(np.asarray(dataset.read(3)), np.asarray(image))
    head, *rows = capsys.readouterr().err.splitlines()
    assert head == "left out 2 of 7 images that cannot be read:"
    assert [row.partition(": broken image")[0] for row in rows] == [
        f"  row 1: {table.paths[1]}",
        f"  row 4: {table.paths[4]}: no such file",
    ]


def test_no_image_left(table: Table) -> None:
    for path in table.paths:
        Path(path).unlink()
    with pytest.raises(InputError, match=r"none of the 7 images can be read; row 0: .*no such file"):
        ImageDataset(table, TRANSFORM, on_error="skip")


def test_other_ways_to_meet_errors_and_tables_without_paths_are_refused(table: Table) -> None:
    with pytest.raises(InputError, match="on_error is 'ignore'; it can be raise or skip"):
        ImageDataset(table, TRANSFORM, on_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no column 'path'"):
        ImageDataset(Table(pd.DataFrame({"label": [1]})), TRANSFORM)


def test_training_batches_hold_images_labels_and_rows(table: Table) -> None:
    batch = TrainBatches(ImageDataset(table, TRANSFORM), [[6, 0, 1]], seed=(0,))[0]
    assert (batch["images"].shape, batch["images"].dtype) == ((3, 1, 12, 12), torch.uint8)
    assert batch["labels"].tolist() == [2, 0, 1]
    assert batch["rows"].tolist() == [6, 0, 1]
    assert batch["labels"].dtype == batch["rows"].dtype == torch.int64


def test_a_training_batch_is_a_function_of_seed_and_number(table: Table) -> None:
    plan = [[0, 1], [2, 3], [0, 1]]
    batches = TrainBatches(ImageDataset(table, TRANSFORM), plan, seed=(1, 2))
    first = [batches[index]["images"] for index in (0, 1, 2)]
    torch.manual_seed(99)
    again = TrainBatches(ImageDataset(table, TRANSFORM, cache=True), plan, seed=(1, 2))
    assert all(torch.equal(again[index]["images"], first[index]) for index in (2, 0, 1))
    assert torch.equal(again[-1]["images"], first[2])
    assert not torch.equal(first[0], first[2])
    other = TrainBatches(ImageDataset(table, TRANSFORM), plan, seed=(1, 3))
    assert not torch.equal(other[0]["images"], first[0])
    assert not torch.equal(TrainBatches(ImageDataset(table, TRANSFORM), plan, seed=(1,))[2]["images"], first[2])


def test_an_error_stays_one_line_when_a_loading_process_hands_it_on(table: Table) -> None:
    break_image(table, 2)
    with pytest.raises(InputError) as raised:
        TrainBatches(ImageDataset(table, TRANSFORM), [[2]], seed=(5,))[0]
    handed_on = ExceptionWrapper(raised._excinfo, where="in DataLoader worker process 0")  # as torch does there
    with pytest.raises(InputError) as caught:
        handed_on.reraise()
    assert str(caught.value).startswith(f"row 2: {table.paths[2]}: broken image")
    assert "\n" not in str(caught.value)
