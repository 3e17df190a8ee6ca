"""Pictures of matching patches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from vicinal.data import ImageTransform
from vicinal.report import MatchedPair, draw_matching_patches
from vicinal.retrieval.reranking.local import PatchMatches


def test_pairs_without_a_patch_in_common_are_drawn_too(tmp_path: Path) -> None:
    gray, nothing = Image.new("L", (9, 300), 128), np.empty((0, 2))
    pair = MatchedPair(gray, gray, PatchMatches(nothing, nothing, np.empty(0, np.float32), grid=(2, 2)), "$a$")
    draw_matching_patches([pair], ImageTransform(size=8), tmp_path / "patches.png")
    assert Image.open(tmp_path / "patches.png").width > 100
