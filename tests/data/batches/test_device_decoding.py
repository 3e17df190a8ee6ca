"""Decoding of JPEGs on a device: libjpeg in the place of nvJPEG, and all the rest as it is on a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import ExifTags, Image
from torch import Tensor

from vicinal.data import ImageDataset, ImageTransform, Table
from vicinal.data.batches import device_decoding, encoded_images
from vicinal.data.batches.device_decoding import DeviceDecoder
from vicinal.data.batches.encoded_images import EncodedImages
from vicinal.data.batches.image_dataset import UnreadableImageError
from vicinal.data.batches.pixel_batches import PixelBatches, all_readable, load_pixels
from vicinal.data.batches.train_batches import Part, TrainImages
from vicinal.data.images import nvjpeg
from vicinal.data.images.augmentation import augment
from vicinal.data.images.nvjpeg import check_device_decoding, decode_jpegs
from vicinal.utils.errors import InputError

CHECK_NVJPEG = nvjpeg.check_nvjpeg
SIZE = 40
TRANSFORM = ImageTransform(size=SIZE)
MAX_ROUNDING = 2  # gray levels
BOX = (5.5, 3.0, 70.0, 58.2)


def smooth(width: int, height: int, seed: int = 0) -> Image.Image:
    colors = np.random.default_rng(seed).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(colors).resize((width, height), Image.Resampling.BICUBIC)


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    return exif


PICTURES: dict[str, tuple[Image.Image, dict[str, Any]]] = {
    "444": (smooth(81, 63), {"subsampling": 0}),
    "420": (smooth(80, 61), {"subsampling": 2}),
    "422": (smooth(61, 80), {"subsampling": 1}),
    "progressive": (smooth(79, 66), {"progressive": True}),
    "gray": (smooth(70, 70).convert("L"), {}),
    **{f"turned {each}": (smooth(78, 60), {"exif": turned(each)}) for each in range(2, 9)},
}
OTHERS: dict[str, tuple[Image.Image, dict[str, Any]]] = {
    "cmyk": (smooth(70, 62).convert("CMYK"), {}),
    "rgb": (smooth(70, 62), {"keep_rgb": True}),
    "thin": (smooth(700, 60), {}),
    "far too large": (smooth(2400, 1700), {}),
    "other format": (smooth(70, 62), {"format": "PNG"}),
}


@pytest.fixture(autouse=True)
def libjpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU decodes as a GPU does, which it may not do otherwise."""
    monkeypatch.setattr(nvjpeg, "check_nvjpeg", lambda *_: None)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """JPEGs of all kinds that nvJPEG decodes and of some that it does not, each whole and cropped to a box."""
    folder = tmp_path_factory.mktemp("pictures")
    for name, (image, options) in {**PICTURES, **OTHERS}.items():
        image.save(folder / f"{name}.jpg", quality=90, **options)
    rows = [(f"{name}.jpg", "a", *box) for name in (*PICTURES, *OTHERS) for box in ([np.nan] * 4, BOX)]
    return Table(pd.DataFrame(rows, columns=["path", "label", "x_1", "y_1", "x_2", "y_2"]), root=folder)


@pytest.fixture
def photos(tmp_path: Path) -> Table:
    """Six JPEGs."""
    for row in range(6):
        smooth(80, 60 + row, row).save(tmp_path / f"{row}.jpg")
    return Table(pd.DataFrame({"path": [f"{row}.jpg" for row in range(6)], "label": list("aabbcc")}), root=tmp_path)


def difference(one: Tensor, other: Tensor) -> int:
    """In gray levels, of the pixel that differs most."""
    assert one.dtype == other.dtype == torch.uint8
    assert one.shape == other.shape
    return int((one.int() - other.int()).abs().max())


def is_close(one: Tensor, other: Tensor, mean: float = 0.05) -> bool:
    """Whether pixels are the same, but for rounding when they are resized across and when they are resized down."""
    return difference(one, other) <= MAX_ROUNDING and (one.double() - other.double()).abs().mean() <= mean


def batches_of(dataset: ImageDataset, decoding: Any, size: int = 9, num_workers: int = 0) -> list[Any]:
    rows = [range(start, min(start + size, len(dataset))) for start in range(0, len(dataset), size)]
    return list(load_pixels(PixelBatches(dataset, rows, decoding), "cpu", num_workers))


@pytest.mark.parametrize("more", [{}, {"interpolation": "bilinear", "resize": 40}, {"channels": 1}])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_pixels_are_those_of_workers(table: Table, more: dict[str, Any], num_workers: int) -> None:
    """Gray levels of a color image are those that the file has, and may be rounded otherwise."""
    dataset = ImageDataset(table, ImageTransform(size=SIZE, **more))
    expected, found = batches_of(dataset, "workers"), batches_of(dataset, "device", num_workers=num_workers)
    assert [len(pixels) for pixels, _ in found] == [len(pixels) for pixels, _ in expected]
    for (one, errors), (other, _) in zip(found, expected, strict=True):
        assert errors == {}
        assert is_close(one, other, mean=0.5 if dataset.transform.channels == 1 else 0.05)


def test_large_images_are_decoded_in_full_size(tmp_path: Path) -> None:
    """So that they have the pixels of Pillow, which those that workers reduce have not."""
    noise = np.random.default_rng(0).integers(0, 256, (900, 1200, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "large.jpg")
    table = Table(pd.DataFrame({"path": ["large.jpg"]}), root=tmp_path)
    ((found, _),) = batches_of(ImageDataset(table, TRANSFORM), "device")
    ((reduced, _),) = batches_of(ImageDataset(table, TRANSFORM), "workers")
    ((exact, _),) = batches_of(ImageDataset(table, replace(TRANSFORM, fast=False)), "workers")
    assert is_close(found, exact)
    assert not is_close(reduced, exact)


@pytest.mark.parametrize("jitter", [0.0, 0.4])
def test_random_numbers_are_those_of_workers(table: Table, jitter: float) -> None:
    transform = replace(TRANSFORM, color_jitter=jitter)
    dataset, part = ImageDataset(table, transform), Part([*range(len(table)), 3, 0], (1, 2))
    expected = TrainImages(dataset, "device")[part]
    left = TrainImages(dataset, "workers", "device")[part]
    assert isinstance(left.pixels, EncodedImages)
    pixels = all_readable(DeviceDecoder(dataset, "cpu")(left.pixels))
    assert is_close(pixels, expected.pixels)
    assert left.augmentation is not None
    assert torch.equal(left.augmentation, expected.augmentation)
    by_workers = TrainImages(dataset)[part].pixels
    changed = augment(pixels, left.augmentation, transform)
    assert difference(changed, by_workers) <= (MAX_ROUNDING if jitter == 0 else 8)  # which changes of color multiply
    assert difference(pixels, by_workers) > 20  # some are flipped


def test_a_crop_without_flip_leaves_nothing_else_to_the_device(photos: Table) -> None:
    dataset = ImageDataset(photos, ImageTransform(size=SIZE, flip=0.0))
    left = TrainImages(dataset, decoding="device")[Part(range(6), (5,))]
    assert left.augmentation is None
    pixels = all_readable(DeviceDecoder(dataset, "cpu")(left.pixels))
    assert is_close(pixels, TrainImages(dataset)[Part(range(6), (5,))].pixels)


def test_files_that_nvjpeg_does_not_decode_alike_are_decoded_by_those_who_read_them(table: Table) -> None:
    images, _ = PixelBatches(ImageDataset(table, TRANSFORM), [range(len(table))], "device")[0]
    assert isinstance(images, EncodedImages)
    kinds = [Path(path).stem for path in table.paths]
    plans = images.listed_plans()
    has_file = {(kind, plan.row % 2): plan.num_bytes > 0 for kind, plan in zip(kinds, plans, strict=True)}
    assert all(has_file[name, part] for name in PICTURES for part in (0, 1))
    assert not any(has_file[name, 0] for name in OTHERS)
    assert has_file["thin", 1]  # its box is no thin image
    assert has_file["far too large", 1]
    assert not any(has_file[name, 1] for name in ("cmyk", "rgb", "other format"))
    assert len(images.pixels) == sum(not each for each in has_file.values())


@pytest.mark.parametrize("sampling", [(1, 3), (3, 1)])
def test_unusual_subsampling_is_left_to_the_cpu(photos: Table, sampling: tuple[int, int]) -> None:
    with Image.open(photos.paths[0]) as image:
        assert nvjpeg.is_supported(image)
        first, *others = image.layer  # type: ignore[attr-defined]
        image.layer = [(first[0], *sampling, first[3]), *others]  # type: ignore[attr-defined]
        assert not nvjpeg.is_supported(image)


def fail_on(monkeypatch: pytest.MonkeyPatch, *broken: bytes, error: type[Exception] = RuntimeError) -> list[int]:
    """The decoder raises an error where one of these files is in a batch, as nvJPEG does. How many it was given."""
    given: list[int] = []

    def decode(files: Sequence[Tensor], channels: int, device: torch.device) -> list[Tensor]:
        given.append(len(files))
        if any(file.numpy().tobytes() in broken for file in files):
            raise error("Error while decoding JPEG images")
        return decode_jpegs(files, channels, device)

    monkeypatch.setattr(device_decoding, "decode_jpegs", decode)
    return given


def test_what_the_device_cannot_decode_the_cpu_does(photos: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = ImageDataset(photos, TRANSFORM)
    smooth(80, 60).save(photos.paths[2], exif=turned(6))
    (expected, _), *_ = batches_of(dataset, "workers")
    given = fail_on(monkeypatch, Path(photos.paths[2]).read_bytes(), Path(photos.paths[4]).read_bytes())
    ((found, errors),) = batches_of(dataset, "device")
    assert errors == {}
    assert given == [6, 1, 1, 1, 1, 1, 1]
    assert is_close(found, expected)


def test_an_image_that_is_broken_costs_itself_only(photos: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = ImageDataset(photos, TRANSFORM)
    (expected, _), *_ = batches_of(dataset, "workers")
    content = Path(photos.paths[1]).read_bytes()
    Path(photos.paths[1]).write_bytes(content[: len(content) // 2])  # found by the process that reads it
    images, errors = PixelBatches(dataset, [range(6)], "device")[0]
    assert list(errors) == [1]
    fail_on(monkeypatch, Path(photos.paths[3]).read_bytes())  # found by the device
    Path(photos.paths[3]).write_bytes(content[: len(content) // 2])
    pixels, more = DeviceDecoder(dataset, "cpu")(images)  # type: ignore[arg-type]
    assert list(more) == [3]
    for row, error in {**errors, **more}.items():
        assert error.startswith(f"{photos.paths[row]}: broken image (")
    assert is_close(pixels, expected[[0, 2, 4, 5]])
    with pytest.raises(UnreadableImageError, match=rf"^row 3: {photos.paths[3]}: broken image \("):
        all_readable((pixels, more))


def test_an_image_of_another_size_than_its_header_is_not_taken(photos: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = ImageDataset(photos, TRANSFORM)
    (expected, _), *_ = batches_of(dataset, "workers")
    monkeypatch.setattr(device_decoding, "decode_jpegs", lambda *given: [each.mT for each in decode_jpegs(*given)])
    assert is_close(batches_of(dataset, "device")[0][0], expected)


def test_too_little_memory_is_no_broken_image(photos: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_on(monkeypatch, Path(photos.paths[0]).read_bytes(), error=torch.OutOfMemoryError)
    with pytest.raises(torch.OutOfMemoryError):
        batches_of(ImageDataset(photos, TRANSFORM), "device")


def test_a_batch_is_decoded_in_one_call_unless_it_is_large(photos: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, given = ImageDataset(photos, TRANSFORM), fail_on(monkeypatch)
    ((whole, _),) = batches_of(dataset, "device")
    assert given == [6]
    for limit, numbers in ((2 * 80 * 62, [2, 1, 1, 1, 1]), (1, [1] * 6)):
        given.clear()
        monkeypatch.setattr(device_decoding, "MAX_PIXELS_AT_ONCE", limit)
        ((parts, _),) = batches_of(dataset, "device")
        assert given == numbers
        assert torch.equal(parts, whole)


def test_no_batch_of_unreadable_images_and_none_without_jpegs(tmp_path: Path) -> None:
    smooth(60, 50).save(tmp_path / "a.png")
    dataset = ImageDataset(Table(pd.DataFrame({"path": ["lost.jpg", "a.png"]}), root=tmp_path), TRANSFORM)
    (none, lost), (one, errors) = batches_of(dataset, "device", size=1)
    assert (len(none), list(lost), errors) == (0, [0], {})
    assert torch.equal(one, batches_of(dataset, "workers", size=1)[1][0])


def test_no_image_of_a_batch_is_on_the_device_too(tmp_path: Path) -> None:
    """Which stream uses a tensor can be said of those on a GPU only: torch raises an error for one of the CPU."""
    dataset = ImageDataset(Table(pd.DataFrame({"path": ["lost.jpg"]}), root=tmp_path), TRANSFORM)
    images, _ = PixelBatches(dataset, [range(1)], "device")[0]
    pixels, errors = DeviceDecoder(dataset, "meta")(images)  # type: ignore[arg-type]
    assert (len(pixels), pixels.device.type, errors) == (0, "meta", {})


class Recorder:
    """A stream that records what is asked of it, and by whom a tensor is used."""

    def __init__(self, events: list[str]) -> None:
        self.events = events

    def synchronize(self) -> None:
        self.events.append("synchronize")

    def wait_stream(self, other: Recorder) -> None:
        self.events.append("wait")


def test_on_a_gpu_no_memory_is_written_that_a_kernel_still_reads(
    photos: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    decode = fail_on(monkeypatch)
    dataset = ImageDataset(photos, TRANSFORM)
    decoder = DeviceDecoder(dataset, "cpu")
    decoder._stream, current = Recorder(events), Recorder(events)  # type: ignore[assignment]
    monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext(events.append("own")))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: current)
    monkeypatch.setattr(Tensor, "record_stream", lambda *_: events.append(f"kept, {len(decode)} calls"))
    images, _ = PixelBatches(dataset, [range(6)], "device")[0]
    decoder(images)  # type: ignore[arg-type]
    assert events == ["synchronize", "own", "wait", "kept, 1 calls"]


@pytest.mark.parametrize(
    ("transform", "device", "message"),
    [
        (TRANSFORM, "cpu", r"which needs a CUDA GPU, not cpu; give --decoding workers"),
        (replace(TRANSFORM, fast=False), "cuda", "resizes by torch: transform.fast must be true"),
        (ImageTransform(longest=64), "cuda", r"transform.longest \(--max_size\) null"),
        (replace(TRANSFORM, interpolation="nearest"), "cuda", "bicubic or bilinear"),
        (TRANSFORM, "cuda", r"which fails here \(not compiled with nvJPEG support\); give --decoding workers"),
    ],
)
def test_what_cannot_be_decoded_is_said_in_one_line(
    transform: ImageTransform, device: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Iterator[Tensor]:
        raise RuntimeError("not compiled with nvJPEG support")

    monkeypatch.setattr(nvjpeg, "decode_jpegs", fail)
    monkeypatch.setattr(nvjpeg, "check_nvjpeg", CHECK_NVJPEG)
    with pytest.raises(InputError, match=message) as caught:
        check_device_decoding(transform, device)
    assert "\n" not in str(caught.value)
    frame = pd.DataFrame({"path": ["lost.jpg"]})
    with pytest.raises(InputError, match=message):
        DeviceDecoder(ImageDataset(Table(frame), transform), device)


def test_the_decoder_warns_of_nothing(photos: Table) -> None:
    file = torch.frombuffer(bytearray(Path(photos.paths[0]).read_bytes()), dtype=torch.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (image,) = decode_jpegs([file], 3, torch.device("cpu"))
    assert image.shape == (3, 60, 80)


def test_few_tensors_are_handed_over(table: Table) -> None:
    """Each takes a file descriptor where processes share memory."""
    images, _ = PixelBatches(ImageDataset(table, TRANSFORM), [range(len(table))], "device")[0]
    assert [each.dtype for each in images] == [torch.uint8, torch.int64, torch.uint8]
    assert len(encoded_images.DevicePlan._fields) == images[1].shape[1]
