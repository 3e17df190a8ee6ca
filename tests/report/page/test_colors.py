"""The colors of lines can be told apart with any color vision, on light and dark paper."""

from __future__ import annotations

import re
from importlib import resources

import numpy as np
import pytest

from vicinal.report.page.charts import NUM_COLORS

VISIONS = {  # linear RGB as it is seen: Machado, Oliveira, Fernandes, IEEE TVCG 2009, severity 1
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
TO_LMS = [  # and of that Oklab: Ottosson, https://bottosson.github.io/posts/oklab
    [0.41222147, 0.53633254, 0.05144599],
    [0.2119035, 0.68069954, 0.10739696],
    [0.08830246, 0.28171884, 0.6299787],
]
TO_LAB = [
    [0.21045426, 0.79361779, -0.00407205],
    [1.9779985, -2.42859221, 0.45059371],
    [0.02590404, 0.78277177, -0.80867577],
]
MIN_DISTANCE = 0.1  # of Oklab; colors that are just different are 0.02 apart
MIN_CONTRAST = 3.0  # of WCAG, for graphics


def palette(scheme: int) -> np.ndarray:
    """The paper and the colors of lines in linear RGB, [1 + NUM_COLORS, 3]; scheme 0 is light, 1 dark."""
    sheet = resources.files("vicinal.report.page").joinpath("page.css").read_text(encoding="utf-8")
    pairs = dict(re.findall(r"--(\w+): light-dark\(([^)]*)\)", sheet))
    names = ["paper", *(f"color{number}" for number in range(NUM_COLORS))]
    texts = [pairs[name].split(", ")[scheme] for name in names]
    values = np.array([[int(text[at : at + 2], 16) for at in (1, 3, 5)] for text in texts]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize("scheme", [0, 1])
@pytest.mark.parametrize("vision", VISIONS)
def test_lines_differ(scheme: int, vision: str) -> None:
    seen = (palette(scheme)[1:] @ np.transpose(VISIONS[vision])).clip(0, 1)
    lab = np.cbrt(seen @ np.transpose(TO_LMS)) @ np.transpose(TO_LAB)
    apart = np.linalg.norm(lab[:, None] - lab[None], axis=2)[np.triu_indices(NUM_COLORS, 1)]
    assert apart.min() > MIN_DISTANCE


@pytest.mark.parametrize("scheme", [0, 1])
def test_lines_stand_out_from_the_paper(scheme: int) -> None:
    paper, *lines = palette(scheme) @ [0.2126, 0.7152, 0.0722] + 0.05
    assert min(max(line, paper) / min(line, paper) for line in lines) > MIN_CONTRAST
