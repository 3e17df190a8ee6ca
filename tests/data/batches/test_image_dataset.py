import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch._utils import ExceptionWrapper

from tests.conftest import draw_noise
from tests.refusals import refused_call
from vicinal.data import ImageDataset, ImageTransform, Table, TrainBatches
from vicinal.data.batches.image_dataset import CPU_BATCH, PixelBatches, map_pixels, row_batches
from vicinal.models import Embedder
from vicinal.utils.errors import InputError

TRANSFORM = ImageTransform(size=12, channels=1, color_jitter=0.3, rotation=10.0)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(draw_noise(tmp_path, "abacbac"), root=tmp_path)


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
    sixth = np.asarray(ImageDataset(table, TRANSFORM).read(5))
    break_image(table, 1)
    Path(table.paths[4]).unlink()
    dataset = ImageDataset(table, TRANSFORM, cache=cache, on_error="skip")
    assert dataset.skipped == [1, 4]
    assert len(dataset) == 5
    assert dataset.table.paths == [table.paths[row] for row in (0, 2, 3, 5, 6)]
    assert dataset.table.classes == ["a", "c"]
    assert np.array_equal(np.asarray(dataset.read(3)), sixth)
    head, *rows = capsys.readouterr().err.splitlines()
    assert head == "left out 2 of 7 images that cannot be read:"
    assert [row.partition(": broken image")[0] for row in rows] == [
        f"  row 1: {table.paths[1]}",
        f"  row 4: {table.paths[4]}: no such file",
    ]


def test_other_ways_to_meet_errors_and_tables_without_paths_are_refused(table: Table) -> None:
    refused_call("on_error is 'ignore'; it can be raise or skip", ImageDataset, table, TRANSFORM, on_error="ignore")
    refused_call("no column 'path'", ImageDataset, Table(pd.DataFrame({"label": [1]})), TRANSFORM)


def test_an_error_stays_one_line_when_a_loading_process_hands_it_on(table: Table) -> None:
    break_image(table, 2)
    with pytest.raises(InputError) as raised:
        TrainBatches(ImageDataset(table, TRANSFORM), [[2]], seed=(5,))[0]
    handed_on = ExceptionWrapper(raised._excinfo, where="in DataLoader worker process 0")  # as torch does there
    refused_call(f"^row 2: {table.paths[2]}: broken image", handed_on.reraise)


NUMBER = 41


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Table:
    folder = tmp_path_factory.mktemp("images")
    table = Table(draw_noise(folder, NUMBER * "a")[["path"]], root=folder)
    (folder / "7.png").write_bytes(b"no image")
    return table


@pytest.fixture
def four_threads() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def means(pixels: torch.Tensor) -> np.ndarray:
    return pixels.float().mean(dim=(1, 2, 3)).numpy()[:, None]


@pytest.mark.usefixtures("four_threads")
@pytest.mark.parametrize("in_threads", [True, False])
def test_results_come_in_order_with_the_errors_of_their_batch(many: Table, in_threads: bool) -> None:
    dataset = ImageDataset(many, ImageTransform(size=32))
    batches = PixelBatches(dataset, row_batches(dataset, range(NUMBER), 3))
    seen, threads = [], set()

    def function(pixels: torch.Tensor) -> np.ndarray:
        threads.add(threading.get_ident())
        seen.append(torch.get_num_threads())
        return means(pixels)

    found = list(map_pixels(function, batches, "cpu", in_threads=in_threads))
    for number, (values, errors) in enumerate(found):
        pixels, expected = batches[number]
        np.testing.assert_array_equal(values, means(pixels))
        assert errors == expected
    assert [row for _, errors in found for row in errors] == [7]
    assert (len(threads) > 1, set(seen)) == ((True, {1}) if in_threads else (False, {4}))
    assert torch.get_num_threads() == 4


@pytest.mark.usefixtures("four_threads")
def test_an_error_ends_the_threads(many: Table) -> None:
    dataset = ImageDataset(many, ImageTransform(size=32))
    batches, calls = PixelBatches(dataset, row_batches(dataset, range(NUMBER), 1)), []

    def function(pixels: torch.Tensor) -> np.ndarray:
        calls.append(1)
        raise InputError("an error")

    refused_call("an error", list, map_pixels(function, batches, "cpu"))
    assert len(calls) < NUMBER / 2
    assert torch.get_num_threads() == 4


@pytest.mark.usefixtures("four_threads")
@pytest.mark.parametrize("backbone", ["test_resnet", "test_vit", "test_convnext", "test_mambaout"])
def test_threads_give_the_bits_of_one_thread(many: Table, backbone: str) -> None:
    transform = ImageTransform(size=64)
    model = Embedder(backbone, dim=8, pretrained=False, pooling="avg", norm="layer", transform=transform)
    images = ImageDataset(many, transform)
    several = model.embed(images, on_error="skip", progress=False)
    assert model.training, "the mode is restored"
    torch.set_num_threads(1)
    one = model.embed(ImageDataset(many, transform), on_error="skip", progress=False, batch_size=CPU_BATCH)
    np.testing.assert_array_equal(several, one)
    assert images.skipped == [7]


def test_modules_of_users_are_not_called_by_several_threads(many: Table, four_threads: Callable[[], None]) -> None:
    threads = set()
    module = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 4))
    model = Embedder.from_module(module, ImageTransform(size=32))
    module.register_forward_hook(lambda *_: threads.add(threading.get_ident()))
    model.embed(many.take([0, 1, 2] * 10), progress=False)
    assert threads == {threading.get_ident()}
