import threading
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from vicinal.data import ImageTransform, Table
from vicinal.data.batches.image_dataset import ImageDataset
from vicinal.data.batches.pixel_batches import CPU_BATCH, PixelBatches, map_pixels, row_batches
from vicinal.models import Embedder
from vicinal.utils.errors import InputError

NUMBER = 41


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    folder, rng = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for number in range(NUMBER):
        Image.fromarray(rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    (folder / "7.png").write_bytes(b"no image")
    return Table(pd.DataFrame({"path": [f"{number}.png" for number in range(NUMBER)]}), root=folder)


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
def test_results_come_in_order_with_the_errors_of_their_batch(table: Table, in_threads: bool) -> None:
    dataset = ImageDataset(table, ImageTransform(size=32))
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
def test_an_error_ends_the_threads(table: Table) -> None:
    dataset = ImageDataset(table, ImageTransform(size=32))
    batches, calls = PixelBatches(dataset, row_batches(dataset, range(NUMBER), 1)), []

    def function(pixels: torch.Tensor) -> np.ndarray:
        calls.append(1)
        raise InputError("an error")

    with pytest.raises(InputError, match="an error"):
        list(map_pixels(function, batches, "cpu"))
    assert len(calls) < NUMBER / 2
    assert torch.get_num_threads() == 4


@pytest.mark.usefixtures("four_threads")
@pytest.mark.parametrize("backbone", ["test_resnet", "test_vit", "test_convnext", "test_mambaout"])
def test_threads_give_the_bits_of_one_thread(table: Table, backbone: str) -> None:
    transform = ImageTransform(size=64)
    model = Embedder(backbone, dim=8, pretrained=False, pooling="avg", norm="layer", transform=transform)
    images = ImageDataset(table, transform)
    many = model.embed(images, on_error="skip", progress=False)
    assert model.training, "the mode is restored"
    torch.set_num_threads(1)
    one = model.embed(ImageDataset(table, transform), on_error="skip", progress=False, batch_size=CPU_BATCH)
    np.testing.assert_array_equal(many, one)
    assert images.skipped == [7]


def test_modules_of_users_are_not_called_by_several_threads(table: Table, four_threads: Callable[[], None]) -> None:
    threads = set()

    class Stateful(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 4)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            threads.add(threading.get_ident())
            self.features = images.mean(dim=(2, 3))
            return self.linear(self.features)

    model = Embedder.from_module(Stateful(), ImageTransform(size=32))
    threads.clear()
    model.embed(table.take([0, 1, 2] * 10), progress=False)
    assert threads == {threading.get_ident()}
