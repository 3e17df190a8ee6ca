"""The reader without torch gives the pixels and the vectors of the library, and needs nothing else of it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image

from tests.data.images.profiles import adobe_rgb
from vicinal.data import ImageTransform, Table
from vicinal.data.images.decoding import open_image
from vicinal.export import OnnxEmbedder, onnx_embedder
from vicinal.models import Embedder
from vicinal.models.inputs import _convert

TRANSFORMS = [
    ImageTransform(24, 24),
    ImageTransform(24, 35, interpolation="bilinear"),
    ImageTransform(24, fast=False),
    ImageTransform(24, interpolation="nearest", channels=1),
    ImageTransform(20, channels=1),
    ImageTransform(longest=50),
]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return save_pictures(tmp_path_factory.mktemp("pictures"))


def reader(transform: ImageTransform) -> OnnxEmbedder:
    """What reads images for a model with this transform; there is no model."""
    made = OnnxEmbedder.__new__(OnnxEmbedder)
    made.preprocessing = transform.to_dict()
    return made


@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda each: f"{each.interpolation}{each.size}")
def test_every_byte_is_that_of_the_library(transform: ImageTransform, pictures: list[Path]) -> None:
    to_pixels, read = transform.test()[:-1], reader(transform)
    for file in pictures:
        with open_image(file, transform.channels) as image:
            expected = to_pixels(image).numpy()
        np.testing.assert_array_equal(read.pixels(file), expected, err_msg=file.name)
        with Image.open(file) as image:
            expected = to_pixels(_convert(image, 0, transform.channels)).numpy()
        with Image.open(file) as image:
            np.testing.assert_array_equal(read.pixels(image), expected, err_msg=f"{file.name} as an image")


def test_vectors_are_those_of_the_embedder(model: Embedder, onnx_file: Path, pictures: list[Path]) -> None:
    exported = OnnxEmbedder(onnx_file)
    assert (exported.dim, exported.fingerprint) == (8, model.fingerprint())
    found = exported.embed(pictures, batch_size=7)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, model.embed(pictures, progress=False), atol=1e-5)
    images = [Image.open(file) for file in pictures[:9]]
    np.testing.assert_allclose(exported.embed(images), model.embed(images, progress=False), atol=1e-5)
    assert exported.embed([]).shape == (0, 8)


def test_the_file_alone_is_enough_without_torch(onnx_file: Path, table: Table, model: Embedder, tmp_path: Path) -> None:
    shutil.copy(onnx_embedder.__file__, tmp_path / "reader.py")
    program = (
        "import json, sys; from reader import OnnxEmbedder\n"
        "vectors = OnnxEmbedder(sys.argv[1]).embed(sys.argv[2:])\n"
        "print(json.dumps([vectors.tolist(), sorted({'torch', 'vicinal', 'pandas'} & sys.modules.keys())]))"
    )
    command = [sys.executable, "-c", program, str(onnx_file), *table.paths[:3]]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    vectors, loaded = json.loads(done.stdout)
    assert loaded == []
    np.testing.assert_allclose(vectors, model.embed(table.paths[:3], progress=False), atol=1e-5)


def test_importing_it_from_the_library_loads_no_torch() -> None:
    program = "import sys; from vicinal.export.onnx_embedder import OnnxEmbedder; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"


def test_what_is_missing_or_of_another_model_is_named(onnx_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"lost\.onnx: no such file; an exported model needs lost.onnx and lost\.prep"):
        OnnxEmbedder(tmp_path / "lost.onnx")
    shutil.copy(onnx_file, tmp_path / "model.onnx")
    values = json.loads(onnx_file.with_suffix(".preprocessing.json").read_text())
    (tmp_path / "model.preprocessing.json").write_text(json.dumps({**values, "fingerprint": "another"}))
    with pytest.raises(ValueError, match=r"model\.preprocessing\.json: of another model than model\.onnx"):
        OnnxEmbedder(tmp_path / "model.onnx")
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"broken\.jpg: cannot be read"):
        OnnxEmbedder(onnx_file).embed([tmp_path / "broken.jpg"])


RNG = np.random.default_rng(0)


def save_pictures(folder: Path) -> list[Path]:
    files = []

    def save(name: str, image: Image.Image, **options: object) -> None:
        image.save(folder / name, **options)
        files.append(folder / name)

    for orientation in range(1, 10):
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = orientation
        save(f"odd{orientation}.jpg", _picture(171, 125), exif=exif)
        save(f"even{orientation}.jpg", _picture(176, 128, smooth=False), exif=exif)
    for width, height in ((350, 250), (141, 129), (50, 35), (17, 16), (1, 1), (2, 50), (250, 25), (300, 26)):
        save(f"{width}.jpg", _picture(width, height))
        save(f"{width}.png", _picture(width, height, smooth=False))
        save(f"gray{width}.jpg", _picture(width, height, 1))
    small = _picture(90, 70)
    save("palette.png", small.convert("P"))
    save("palette_transparent.png", small.convert("P"), transparency=3)
    save("rgba.png", _picture(90, 70, 4))
    save("la.png", _picture(90, 70, 4).convert("LA"))
    save("gray_transparent.png", _picture(90, 70, 1), transparency=77)
    save("bits.png", small.convert("1"))
    save("cmyk.jpg", _picture(230, 170).convert("CMYK"))
    save("uint16.png", Image.fromarray(RNG.integers(0, 65536, (70, 90), dtype=np.uint16)))
    save("int32.tif", Image.fromarray(RNG.integers(0, 2**30, (70, 90), dtype=np.int32)))
    save("float32.tif", Image.fromarray(RNG.random((70, 90), dtype=np.float32)))
    for mode, name in (("RGB", "wide.png"), ("RGBA", "wide_rgba.png"), ("RGB", "wide.jpg"), ("CMYK", "wide_cmyk.jpg")):
        save(name, _picture(230, 170).convert(mode), icc_profile=adobe_rgb())
    save("still.webp", _picture(100, 150))
    save("still.gif", _picture(100, 150))
    return files


def _picture(width: int, height: int, channels: int = 3, smooth: bool = True) -> Image.Image:
    shape = (9, 12) if smooth else (height, width)
    values = RNG.integers(0, 256, (*shape, channels), dtype=np.uint8)
    return Image.fromarray(values.squeeze(axis=2) if channels == 1 else values).resize((width, height))
