"""Images of fixed bytes have the pixels that the oldest and the newest Pillow allowed gave: 11.0.0 and 13.0.0 agree.

`golden/measure.py` writes the table in an environment with any Pillow. If a new one gives other pixels, indexes that
were built with another one are not comparable to the last digit: then bounds belong here, with the reason.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.data.images.golden.measure import CROP, HERE, digest
from vicinal.data import ImageTransform, read_image
from vicinal.data.images.decoding import open_image

GOLDEN = json.loads((HERE / "golden.json").read_text())


@pytest.mark.parametrize("name", GOLDEN)
def test_pixels(name: str) -> None:
    mean, whole, crop = GOLDEN[name]
    pixels = np.asarray(read_image(HERE / name))
    np.testing.assert_allclose(pixels.mean(axis=(0, 1)), mean, atol=1e-3)
    assert digest(pixels) == whole
    transform = ImageTransform(size=CROP["size"], resize=CROP["resize"])
    with open_image(HERE / name) as image:
        assert digest(transform.test()[:-1](image).numpy()) == crop
