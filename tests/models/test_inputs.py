import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.conftest import draw_noise
from tests.refusals import refused_call
from vicinal.data import ImageDataset, ImageTransform, Table
from vicinal.data.images.decoding import open_image
from vicinal.data.images.image_ops import normalized
from vicinal.models.inputs import image_batches

TRANSFORM = ImageTransform(size=16)


@pytest.fixture
def paths(tmp_path):
    return [tmp_path / name for name in draw_noise(tmp_path, "aaaaa")["path"]]


def together(source, **options):
    batches, number = image_batches(source, TRANSFORM, batch_size=2, **options)
    parts = list(batches)
    assert len(parts) == number
    assert max(len(part) for part in parts) <= 2
    return normalized(torch.cat(parts), TRANSFORM)


def test_every_kind_of_source_gives_the_same_images(paths):
    view = TRANSFORM.test()
    expected = torch.stack([view(Image.open(path)) for path in paths])
    table = Table(pd.DataFrame({"path": [str(path) for path in paths]}))
    pictures = [Image.open(path) for path in paths]
    dataset = ImageDataset(table, TRANSFORM, cache=True)
    for source in (table, dataset, paths, tuple(map(str, paths)), pictures, expected, list(expected)):
        assert torch.equal(together(source), expected)
    assert torch.equal(together(paths, num_workers=1), expected)


def test_turned_pictures_are_turned_back(paths, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(paths[0]).save(tmp_path / "turned.png", exif=exif)
    turned = tmp_path / "turned.png"
    assert torch.equal(together([Image.open(turned)]), together([turned]))
    assert not torch.equal(together([turned]), together(paths[:1]))


def test_broken_files(paths, monkeypatch):
    paths[3].write_bytes(b"nothing")
    refused_call(r"row 3: .*3\.png", together, paths)
    assert len(together(paths, on_error="skip")) == 4
    dataset = ImageDataset(Table(pd.DataFrame({"path": [str(path) for path in paths]})), TRANSFORM)
    opened = []

    def recorded(path, channels):
        opened.append(path)
        return open_image(path, channels)

    monkeypatch.setattr("vicinal.data.batches.image_dataset.open_image", recorded)
    assert len(together(dataset, on_error="skip")) == 4
    assert opened == [str(path) for path in paths]  # once each: what cannot be read is found on the way
    assert dataset.skipped == [3]
    truncated = paths[2].read_bytes()[:300]
    paths[2].write_bytes(truncated)
    refused_call("image 1: broken", lambda: together([Image.open(paths[0]), Image.open(paths[2])]))


def test_other_things_are_refused():
    for source, message in (
        ("folder/a.png", "cannot embed str; give a Table"),
        (["a.png", np.zeros((4, 4, 3))], r"cannot embed ndarray in element 1 of the list; .* PIL.Image.fromarray"),
        (np.zeros((4, 4, 3)), r"cannot embed ndarray; .* PIL.Image.fromarray\(array\) makes a picture of it"),
        ((b"JPEG",), r"cannot embed bytes in element 0 of the list; .* PIL.Image.open"),
        (["a.png", Image.new("L", (4, 4))], r"cannot embed Image in element 1 of the list; .* all must be of one kind"),
        (torch.zeros(2, 1, 16, 16), r"float \[n, 3, H, W\]"),
        (torch.zeros(2, 3, 16, 16, dtype=torch.uint8), "torch.uint8"),
        ([torch.zeros(3, 16, 16), torch.zeros(3, 8, 8)], r"shapes \(3, 8, 8\) and \(3, 16, 16\)"),
    ):
        refused_call(message, image_batches, source, TRANSFORM)


def test_a_dataset_of_another_transform_is_refused(paths):
    table = Table(pd.DataFrame({"path": [str(path) for path in paths]}))
    refused_call(r"transform=model\.transform", image_batches, ImageDataset(table, ImageTransform(size=8)), TRANSFORM)
    loaded = ImageTransform.from_dict(TRANSFORM.to_dict())  # of a saved model, which states the default of `resize`
    image_batches(ImageDataset(table, TRANSFORM), loaded)


@pytest.mark.parametrize("batch", [0, -1, 1.5])
def test_invalid_batch(batch):
    refused_call("batch_size is", lambda: image_batches(torch.zeros(2, 3, 8, 8), TRANSFORM, batch_size=batch))


def test_pixels_are_normalized_after_a_model_was_traced_with_fake_ones():
    transform, pixels = ImageTransform(size=2, mean=(0.1, 0.2, 0.3)), torch.zeros(1, 3, 2, 2, dtype=torch.uint8)
    for _ in range(2):
        with FakeTensorMode() as mode:
            normalized(mode.from_tensor(pixels), transform)
        assert type(normalized(pixels, transform)) is torch.Tensor
