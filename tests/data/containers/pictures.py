"""Tiny pictures, encoded in several formats."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from vicinal.data import Table


def encoded(number: int, suffix: str = ".png") -> bytes:
    """The bytes of a picture that no other number has."""
    pixels = np.random.default_rng(number).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, {".png": "PNG", ".jpg": "JPEG", ".webp": "WEBP"}[suffix])
    return buffer.getvalue()


def contents(table: Table) -> list[bytes]:
    return [Path(path).read_bytes() for path in table.paths]
