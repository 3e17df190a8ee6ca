"""Rendered characters: any number of classes of any number of images, without download."""

from __future__ import annotations

import math
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from PIL import Image, ImageDraw, ImageFont

from vicinal.console import track
from vicinal.data.benchmarks.cache import cache_folder, prepared_table
from vicinal.data.table import Table
from vicinal.errors import InputError

DRAWING = 96  # side of the clean drawing that all images of a class are made from, in pixels
Drawing = tuple[str, str, Image.Image]


def glyphs(
    root: str | Path | None = None, classes: int = 200, per_class: int = 20, size: int = 32, seed: int = 0
) -> Table:
    """Characters of the fonts that come with matplotlib, each image turned, scaled, sheared, shifted and noisy.

    A class is a character in a font, labelled `U+0041/DejaVuSans`; its coarse label is the character. Characters that
    look alike in a font, as the Latin and the Greek A, count once. Half of the classes are train, a tenth val, the
    others test.

    Args:
        root: folder that keeps benchmarks; by default VICINAL_DATA of the environment, else ~/.cache/vicinal.
        classes: how many, at least 2. The fonts are used up one after the other, their characters in the order of
            their code points.
        per_class: images of each class.
        size: side of the images, in pixels.
        seed: of the jitter and the split; not negative.

    Raises:
        InputError: more classes than the fonts have characters, or a number that is too small.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     table = glyphs(folder, classes=4, per_class=3)
        >>> len(table), table.splits, table.classes[0]
        (12, ['train', 'test'], 'U+0030/DejaVuSans')
    """
    for name, number, least in (
        ("classes", classes, 2),
        ("per_class", per_class, 1),
        ("size", size, 4),
        ("seed", seed, 0),
    ):
        if number < least:
            raise InputError(f"glyphs: {name} is {number}; it must be at least {least}")
    name = f"{classes}x{per_class}-{size}px-seed{seed}"
    return prepared_table(
        cache_folder(root) / "glyphs" / name, lambda folder: _write(folder, classes, per_class, size, seed)
    )


def _write(folder: Path, classes: int, per_class: int, size: int, seed: int) -> pd.DataFrame:
    drawings = _first(classes)
    splits = _splits(classes, np.random.default_rng([seed, classes]))
    rows = []
    for number, (character, font, drawing) in enumerate(track(drawings, "drawing glyphs", total=classes)):
        place = f"{character}/{font}"
        (folder / place).mkdir(parents=True)
        for image in range(per_class):
            path = f"{place}/{image:04d}.png"
            _jittered(drawing, size, np.random.default_rng([seed, number, image])).save(folder / path)
            rows.append((path, place, character, splits[number]))
    return pd.DataFrame(rows, columns=["path", "label", "coarse", "split"])


def _first(classes: int) -> list[Drawing]:
    fonts = [(path, _codes(path)) for path in _font_files()]
    _refuse_beyond(classes, sum(len(codes) for _, codes in fonts))  # at once, before thousands are drawn
    found = [drawing for drawing, _ in zip(_drawings(fonts), range(classes), strict=False)]
    _refuse_beyond(classes, len(found))
    return found


def _refuse_beyond(classes: int, most: int) -> None:
    if classes > most:
        raise InputError(f"glyphs: classes is {classes}; the fonts of matplotlib give {most} at most")


def _drawings(fonts: list[tuple[Path, list[int]]]) -> Iterator[Drawing]:
    """Every distinct letter and digit of every font: its code point, the font, the clean drawing."""
    for path, codes in fonts:
        font, seen = ImageFont.truetype(str(path), DRAWING // 2), set()
        for code in codes:
            drawing = _drawn(chr(code), font)
            if drawing is not None and (digest := sha256(drawing.tobytes()).digest()) not in seen:
                seen.add(digest)
                yield f"U+{code:04X}", path.stem, drawing


def _font_files() -> list[Path]:
    from matplotlib import get_data_path  # only the first call needs it

    files = Path(get_data_path(), "fonts", "ttf").glob("*.ttf")
    return sorted(files, key=lambda path: (path.stem != "DejaVuSans", path))


def _codes(path: Path) -> list[int]:
    from matplotlib.ft2font import FT2Font

    return [code for code in sorted(FT2Font(str(path)).get_charmap()) if chr(code).isalnum()]


def _drawn(character: str, font: ImageFont.FreeTypeFont) -> Image.Image | None:
    """The character in white on black, its box in the centre; None where there is nothing to see or no room."""
    left, top, right, bottom = font.getbbox(character)
    width, height = right - left, bottom - top
    if not (0 < width <= DRAWING and 0 < height <= DRAWING):
        return None
    image = Image.new("L", (DRAWING, DRAWING))
    corner = ((DRAWING - width) / 2 - left, (DRAWING - height) / 2 - top)
    ImageDraw.Draw(image).text(corner, character, fill=255, font=font)
    return image if image.getbbox() else None


def _splits(classes: int, rng: np.random.Generator) -> npt.NDArray[np.str_]:
    val, train = classes // 10, -(-classes // 2)
    return rng.permutation(np.repeat(["train", "val", "test"], [train, val, classes - train - val]))


def _jittered(drawing: Image.Image, size: int, rng: np.random.Generator) -> Image.Image:
    """One image: black on white, turned up to 15 degrees, scaled, sheared, shifted, with noise on every pixel."""
    angle, shear = rng.uniform(-math.pi / 12, math.pi / 12), rng.uniform(-0.2, 0.2)
    stretch = DRAWING / size / rng.uniform(1.0, 1.4, size=2)
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    matrix = turn @ np.array([[1, shear], [0, 1]]) @ np.diag(stretch)
    shift = DRAWING / 2 - matrix @ (size / 2 + rng.uniform(-0.06, 0.06, size=2) * size)
    affine = (*matrix[0], shift[0], *matrix[1], shift[1])
    image = drawing.transform((size, size), Image.Transform.AFFINE, affine, Image.Resampling.BICUBIC)
    pixels = 255 - np.asarray(image, dtype=np.float64) + rng.normal(0, rng.uniform(5, 30), size=(size, size))
    return Image.fromarray(np.rint(pixels.clip(0, 255)).astype(np.uint8))
