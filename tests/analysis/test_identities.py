"""What is noted about photos of individuals."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image, ImageFilter
from scipy.ndimage import laplace

from vicinal.analysis import photo_quality
from vicinal.data import Table


def test_photos_are_measured_and_compared_with_their_own_and_other_identities(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    photo = Image.fromarray(rng.integers(0, 256, (100, 120, 3), dtype=np.uint8))
    pictures = {"a": photo, "b": photo.filter(ImageFilter.GaussianBlur(3)), "c": photo.resize((60, 50)), "d": photo}
    for name, each in pictures.items():
        each.save(tmp_path / f"{name}.png")
    (tmp_path / "e.png").write_bytes(b"no image")
    table = Table(pd.DataFrame({"path": [f"{name}.png" for name in "abcde"], "label": list("AAABC")}), root=tmp_path)
    vectors = np.array([[1.0, 0, 0], [0.8, 0.6, 0], [0, 1.0, 0], [0.0, 0.8, 0.6], [0, 0, 1.0]])
    found = photo_quality(vectors, table)
    assert found["shorter_side"].tolist()[:4] == [100, 100, 50, 100]
    assert found["shorter_side"].isna().tolist() == [False] * 4 + [True]
    gray = np.asarray(photo.convert("L"), dtype=np.float64)
    assert found["sharpness"][0] == pytest.approx(laplace(gray).var())
    np.testing.assert_allclose(found["own_similarity"], [0.8, 0.8, 0.6, np.nan, np.nan], atol=1e-6)
    np.testing.assert_allclose(found["other_similarity"], [0, 0.48, 0.8, 0.8, 0.6], atol=1e-6)
    assert found["other"].tolist() == ["B", "B", "B", "A", "B"]
    notes = ["", "blurred", "small: 50 pixels, more like B (0.80) than its own (0.60)", "", ""]
    assert found["note"].tolist() == notes
    some = photo_quality(vectors, table, np.array([2]))
    assert some["row"].tolist() == [2]
    assert some["own_similarity"][0] == pytest.approx(0.6)


def test_boxes_are_measured_within_their_picture(tmp_path: Path) -> None:
    Image.new("RGB", (100, 80)).save(tmp_path / "a.png")
    boxes = {"x_1": [10, -5], "y_1": [10, 0], "x_2": [40, 200], "y_2": [90, 70]}
    table = Table(pd.DataFrame({"path": ["a.png"] * 2, "label": [1, 1], **boxes}), root=tmp_path)
    assert photo_quality(np.eye(2), table)["shorter_side"].tolist() == [30, 70]


def test_one_identity_has_no_other() -> None:
    found = photo_quality(np.eye(2), Table(pd.DataFrame({"label": [7, 7]})))
    assert found["other"].tolist() == [None, None]
    assert found["note"].tolist() == ["", ""]
