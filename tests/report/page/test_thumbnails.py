import base64
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image, ImageCms

from vicinal.data import Table
from vicinal.report.page.frames import LARGE, SMALL, Thumbnails
from vicinal.report.page.markup import without_home


def opened(source: str) -> Image.Image:
    return Image.open(BytesIO(base64.b64decode(source)))


@pytest.fixture
def table(tmp_path) -> Table:
    rng = np.random.default_rng(0)
    paths = [tmp_path / name for name in ("a.png", "b.jpg", "lost.png")]
    for path in paths[:2]:
        Image.fromarray(rng.integers(0, 256, (300, 600, 3), dtype=np.uint8)).save(path)
    return Table(pd.DataFrame({"path": map(str, paths), "label": ["a", "b", "c"]}))


def test_every_image_once_in_its_largest_size(table: Table) -> None:
    thumbnails = Thumbnails()
    assert [thumbnails.number(table, row, size) for row, size in ((1, SMALL), (0, SMALL), (1, LARGE))] == [0, 1, 0]
    first, second = thumbnails.encoded()
    assert (opened(first["src"]).size, opened(second["src"]).size) == ((LARGE, LARGE // 2), (SMALL, SMALL // 2))
    assert (first["label"], first["file"]) == ("b", "b.jpg")


def test_smaller_until_they_fit(table: Table, monkeypatch) -> None:
    thumbnails = Thumbnails()
    for row in range(2):
        thumbnails.number(table, row)
    sizes = []
    for budget in (10**6, 10_000, 2_000):
        monkeypatch.setattr("vicinal.report.page.frames.MAX_BYTES", budget)
        sizes.append(sum(len(image["src"]) for image in thumbnails.encoded()))
    assert sizes[0] > 10_000
    assert sizes[1] <= 10_000
    assert sizes[2] <= 2_000


def test_thumbnails_are_pixels_alone(tmp_path) -> None:
    exif = Image.Exif()
    exif[0x010E] = "taken at home"
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    path = tmp_path / "a.jpg"
    Image.new("RGB", (400, 400), "red").save(path, exif=exif, icc_profile=profile)
    thumbnails = Thumbnails()
    thumbnails.number(Table(pd.DataFrame({"path": [str(path)], "label": ["a"]})), 0)
    assert not {"icc_profile", "exif", "xmp"} & set(opened(thumbnails.encoded()[0]["src"]).info)


def test_the_home_folder_is_named_where_a_path_begins_with_it_alone(monkeypatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    text = "source: '/home/me/birds' # /home/me. /home/mean /data/home/me"
    assert without_home(text) == "source: '~/birds' # ~. /home/mean /data/home/me"
    monkeypatch.setattr(Path, "home", lambda: Path("/"))
    assert without_home(text) == text
